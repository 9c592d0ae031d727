//! Samples that change the probe itself: ports, handlers, paths, headers, commands, timing.

use leadsman_api::limits;
use serde_json::{Map, Value, json};

use super::{PROBE, Table, Verdict, path};

pub(super) fn ports(table: &mut Table) {
    for handler in ["httpGet", "tcpSocket"] {
        let probe = |port: Value| json!({handler: {"port": port}});
        let at = format!("{}.{handler}.port", path(PROBE));
        for good in [
            json!(1),
            json!(65535),
            json!("http"),
            json!("a"),
            json!("8a"),
            json!("a-b-c"),
            json!("abcdefghijklmn1"),
        ] {
            table.accept(format!("{handler} port {good}"), &[(PROBE, probe(good))]);
        }
        for bad in [
            json!(0),
            json!(-1),
            json!(65536),
            json!(""),
            json!("80"),
            json!("a--b"),
            json!("-a"),
            json!("a-"),
            json!("HTTP"),
            json!("a_b"),
            json!("abcdefghijklmnop"),
        ] {
            table.refuse(
                format!("{handler} port {bad}"),
                &[(PROBE, probe(bad))],
                at.as_str(),
            );
        }
        for unreadable in [json!(4_294_967_296_i64), json!(true)] {
            let name = format!("{handler} port {unreadable}");
            table.add(name, &[(PROBE, probe(unreadable))], Verdict::Unreadable);
        }
    }
    let grpc = |port: Value| json!({"grpc": {"port": port}});
    for good in [1, 65535] {
        table.accept(format!("grpc port {good}"), &[(PROBE, grpc(json!(good)))]);
    }
    for bad in [0, -1, 65536] {
        let at = format!("{}.grpc.port", path(PROBE));
        table.refuse(format!("grpc port {bad}"), &[(PROBE, grpc(json!(bad)))], at);
    }
    table.add(
        "grpc port \"http\"",
        &[(PROBE, grpc(json!("http")))],
        Verdict::Unreadable,
    );
}

pub(super) fn handlers(table: &mut Table) {
    let all = [
        ("exec", json!({"command": ["true"]})),
        ("httpGet", json!({"port": 80})),
        ("tcpSocket", json!({"port": 80})),
        ("grpc", json!({"port": 80, "service": "a b"})),
    ];
    for (first, action) in &all {
        table.accept(*first, &[(PROBE, json!({*first: action}))]);
        for (second, other) in all.iter().filter(|(second, _)| second > first) {
            let probe = json!({*first: action, *second: other});
            table.refuse(
                format!("{first} and {second}"),
                &[(PROBE, probe)],
                path(PROBE),
            );
        }
    }
    let four: Map<_, _> = all
        .iter()
        .map(|(name, action)| ((*name).to_owned(), action.clone()))
        .collect();
    table.refuse("all handlers", &[(PROBE, four.into())], path(PROBE));
    table.refuse(
        "no handler",
        &[(PROBE, json!({"periodSeconds": 1}))],
        path(PROBE),
    );
    let command = format!("{}.exec.command", path(PROBE));
    table.refuse(
        "exec of nothing",
        &[(PROBE, json!({"exec": {}}))],
        command.as_str(),
    );
    table.refuse(
        "exec of an empty command",
        &[(PROBE, json!({"exec": {"command": []}}))],
        command,
    );
    table.accept(
        "exec of an empty word",
        &[(PROBE, json!({"exec": {"command": [""]}}))],
    );
    table.accept(
        "another handler is null",
        &[(PROBE, json!({"exec": null, "tcpSocket": {"port": 1}}))],
    );
    table.add(
        "exec of a number",
        &[(PROBE, json!({"exec": {"command": [1]}}))],
        Verdict::Unreadable,
    );
    table.add(
        "exec of a string",
        &[(PROBE, json!({"exec": "true"}))],
        Verdict::Unreadable,
    );
}

pub(super) fn http(table: &mut Table) {
    let at = |field: &str| format!("{}.httpGet{field}", path(PROBE));
    let probe =
        |field: &str, value: Value| [(PROBE, json!({"httpGet": {"port": 80, field: value}}))];
    paths(table);
    for good in ["", "HTTP", "HTTPS"] {
        table.accept(format!("scheme {good:?}"), &probe("scheme", json!(good)));
    }
    for bad in ["http", "Https", "FTP"] {
        table.refuse(
            format!("scheme {bad:?}"),
            &probe("scheme", json!(bad)),
            at(".scheme"),
        );
    }
    header_values(table);
    let longest = "a".repeat(limits::HEADER_NAME);
    let header = |name: &str| json!([{"name": name, "value": ""}]);
    for good in ["A", "x-y", "1", "-", longest.as_str()] {
        table.accept(
            format!("header {good:?}"),
            &probe("httpHeaders", header(good)),
        );
    }
    for bad in ["", "a b", "a_b", "a:", "é", "a\n", &format!("{longest}a")] {
        let headers = header(bad);
        table.refuse(
            format!("header {bad:?}"),
            &probe("httpHeaders", headers),
            at(".httpHeaders[0].name"),
        );
    }
    let headers = |count: usize| json!(vec![json!({"name": "same", "value": "a b"}); count]);
    table.accept(
        "most headers",
        &probe("httpHeaders", headers(limits::HEADERS)),
    );
    table.refuse(
        "too many headers",
        &probe("httpHeaders", headers(limits::HEADERS + 1)),
        at(".httpHeaders"),
    );
    for handler in ["httpGet", "tcpSocket"] {
        let with_host = |host: &str| [(PROBE, json!({handler: {"port": 80, "host": host}}))];
        let place = format!("{}.{handler}.host", path(PROBE));
        table.accept(format!("{handler} with an empty host"), &with_host(""));
        table.refuse(
            format!("{handler} with a host"),
            &with_host("169.254.169.254"),
            place,
        );
    }
}

/// Paths that Go's `url.Parse` accepts or refuses.
fn paths(table: &mut Table) {
    let at = format!("{}.httpGet.path", path(PROBE));
    let probe = |path: &str| [(PROBE, json!({"httpGet": {"port": 80, "path": path}}))];
    let longest = format!("/{}", "é".repeat(limits::PATH - 1));
    let good = [
        "",
        "/",
        "/a?b=c",
        "a b",
        "?x",
        "*",
        "é",
        "/%2f%C3",
        "/a?%zz%",
        "/a?b:c",
        "/?#",
        "/a:b",
        "a/b:c",
        "a#b:c",
        "http://h/p",
        "a:b",
        "//h/p",
        "//h:80",
        "//u:p@h",
        "//[::1]:80/",
        "///a^b",
        "//",
        "/\"'`{}|^",
        &longest,
    ];
    for good in good {
        table.accept(format!("path {good:?}"), &probe(good));
    }
    let too_long = format!("{longest}a");
    let bad = [
        "/%", "/%2", "/%zz", "/a%2", "/a#%zz", "/a%?b", "/a\n", "/\t", "/\r", "/\u{0}", "/\u{7f}",
        ":", "1:b", "a_b:c", "a b:c", "é:", "//a b/", "//h:x", "//[::1", "//u^@h", "//h%41/",
        "//h%", &too_long,
    ];
    for bad in bad {
        table.refuse(format!("path {bad:?}"), &probe(bad), at.as_str());
    }
}

fn header_values(table: &mut Table) {
    let at = format!("{}.httpGet.httpHeaders", path(PROBE));
    let probe = |headers: Value| {
        [(
            PROBE,
            json!({"httpGet": {"port": 80, "httpHeaders": headers}}),
        )]
    };
    let header = |value: &str| probe(json!([{"name": "A", "value": value}]));
    let longest = "é".repeat(limits::HEADER_VALUE);
    for good in ["", "a b", "\t", "é", &longest] {
        table.accept(format!("header of value {good:?}"), &header(good));
    }
    let too_long = format!("{longest}a");
    for bad in ["\n", "a\nb", "a\rb", "a\r\nHost: b", &too_long] {
        let name = format!("header of value {bad:?}");
        table.refuse(name, &header(bad), format!("{at}[0].value"));
    }
    for missing in [
        json!({"name": "A"}),
        json!({"value": "a"}),
        json!({"name": "A", "value": null}),
    ] {
        let name = format!("a header {missing}");
        table.add(name, &probe(json!([missing])), Verdict::Unreadable);
    }
    // Headers of `bytes` in all, names included, each value within its own maximum.
    let together = |bytes: usize| {
        let value = |left: usize| left.min(limits::HEADER_VALUE);
        let mut left = bytes;
        let mut headers = Vec::new();
        while left > 0 {
            let value = value(left - 1);
            headers.push(json!({"name": "A", "value": "v".repeat(value)}));
            left -= value + 1;
        }
        json!(headers)
    };
    table.accept("largest headers", &probe(together(limits::HEADERS_BYTES)));
    let more = together(limits::HEADERS_BYTES + 1);
    table.refuse("too large headers", &probe(more), at);
}

pub(super) fn commands(table: &mut Table) {
    let at = format!("{}.exec.command", path(PROBE));
    let probe = |command: Value| [(PROBE, json!({"exec": {"command": command}}))];
    let words = |count: usize| json!(vec!["w"; count]);
    table.accept("most words", &probe(words(limits::COMMAND_WORDS)));
    let more = words(limits::COMMAND_WORDS + 1);
    table.refuse("too many words", &probe(more), at.as_str());
    let whole = "x".repeat(limits::COMMAND_CHARS);
    table.accept("longest command", &probe(json!([whole])));
    let half = "é".repeat(limits::COMMAND_CHARS / 2);
    table.accept("largest command", &probe(json!([half, half])));
    let more = json!([half, half, "x"]);
    table.refuse("too large a command", &probe(more), at.as_str());
    let more = json!([whole + "x"]);
    table.refuse("too long a word", &probe(more), format!("{at}[0]"));
    let service = "s".repeat(limits::GRPC_SERVICE);
    let grpc = |service: &str| [(PROBE, json!({"grpc": {"port": 1, "service": service}}))];
    table.accept("longest service", &grpc(&service));
    let place = format!("{}.grpc.service", path(PROBE));
    table.refuse("too long a service", &grpc(&(service + "s")), place);
}

pub(super) fn timings(table: &mut Table) {
    let fields = [
        "initialDelaySeconds",
        "periodSeconds",
        "timeoutSeconds",
        "successThreshold",
        "failureThreshold",
    ];
    for field in fields {
        let probe = |value: Value| [(PROBE, json!({"tcpSocket": {"port": 1}, field: value}))];
        let most = if field == "timeoutSeconds" {
            limits::TIMEOUT_SECONDS
        } else {
            i32::MAX
        };
        for good in [0, 1, most] {
            table.accept(format!("{field} {good}"), &probe(json!(good)));
        }
        let at = format!("{}.{field}", path(PROBE));
        table.refuse(format!("{field} -1"), &probe(json!(-1)), at);
        for unreadable in [json!(2_147_483_648_i64), json!(1.5), json!("1")] {
            let name = format!("{field} {unreadable}");
            table.add(name, &probe(unreadable), Verdict::Unreadable);
        }
    }
    for bad in [limits::TIMEOUT_SECONDS + 1, i32::MAX] {
        let probe = json!({"tcpSocket": {"port": 1}, "timeoutSeconds": bad});
        let at = format!("{}.timeoutSeconds", path(PROBE));
        table.refuse(format!("timeoutSeconds {bad}"), &[(PROBE, probe)], at);
    }
    for seconds in [0, 1] {
        let probe = json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": seconds});
        let at = format!("{}.terminationGracePeriodSeconds", path(PROBE));
        table.refuse(format!("grace period {seconds}"), &[(PROBE, probe)], at);
    }
}
