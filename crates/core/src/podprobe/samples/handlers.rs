//! Samples that change the probe itself: ports, handlers, paths, headers, commands, timing.

use leadsman_api::limits;
use serde_json::{Map, Value, json};

use super::{FILE, PROBE, SampleVerdict, Table, pointer_to_path};

pub(super) fn add_ports(table: &mut Table) {
    for handler in ["httpGet", "tcpSocket"] {
        let probe = |port: Value| json!({handler: {"port": port}});
        let at = format!("{}.{handler}.port", pointer_to_path(PROBE));
        for good in [
            json!(1),
            json!(65535),
            json!("http"),
            json!("a"),
            json!("8a"),
            json!("a-b-c"),
            json!("abcdefghijklmn1"),
        ] {
            table.add_accepted(format!("{handler} port {good}"), &[(PROBE, probe(good))]);
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
            table.add_refused(
                format!("{handler} port {bad}"),
                &[(PROBE, probe(bad))],
                at.as_str(),
            );
        }
        for unreadable in [json!(4_294_967_296_i64), json!(true)] {
            let name = format!("{handler} port {unreadable}");
            table.add_sample(
                name,
                &[(PROBE, probe(unreadable))],
                SampleVerdict::Unreadable,
            );
        }
    }
    let grpc = |port: Value| json!({"grpc": {"port": port}});
    for good in [1, 65535] {
        table.add_accepted(format!("grpc port {good}"), &[(PROBE, grpc(json!(good)))]);
    }
    for bad in [0, -1, 65536] {
        let at = format!("{}.grpc.port", pointer_to_path(PROBE));
        table.add_refused(format!("grpc port {bad}"), &[(PROBE, grpc(json!(bad)))], at);
    }
    table.add_sample(
        "grpc port \"http\"",
        &[(PROBE, grpc(json!("http")))],
        SampleVerdict::Unreadable,
    );
}

pub(super) fn add_handlers(table: &mut Table) {
    let all = [
        ("exec", json!({"command": ["true"]})),
        ("httpGet", json!({"port": 80})),
        ("tcpSocket", json!({"port": 80})),
        ("grpc", json!({"port": 80, "service": "a b"})),
    ];
    for (first, action) in &all {
        table.add_accepted(*first, &[(PROBE, json!({*first: action}))]);
        for (second, other) in all.iter().filter(|(second, _)| second > first) {
            let probe = json!({*first: action, *second: other});
            table.add_refused(
                format!("{first} and {second}"),
                &[(PROBE, probe)],
                pointer_to_path(PROBE),
            );
        }
    }
    let four: Map<_, _> = all
        .iter()
        .map(|(name, action)| ((*name).to_owned(), action.clone()))
        .collect();
    table.add_refused(
        "all handlers",
        &[(PROBE, four.into())],
        pointer_to_path(PROBE),
    );
    table.add_refused(
        "no handler",
        &[(PROBE, json!({"periodSeconds": 1}))],
        pointer_to_path(PROBE),
    );
    let command = format!("{}.exec.command", pointer_to_path(PROBE));
    table.add_refused(
        "exec of nothing",
        &[(PROBE, json!({"exec": {}}))],
        command.as_str(),
    );
    table.add_refused(
        "exec of an empty command",
        &[(PROBE, json!({"exec": {"command": []}}))],
        command,
    );
    table.add_accepted(
        "exec of an empty word",
        &[(PROBE, json!({"exec": {"command": [""]}}))],
    );
    table.add_accepted(
        "another handler is null",
        &[(PROBE, json!({"exec": null, "tcpSocket": {"port": 1}}))],
    );
    table.add_sample(
        "exec of a number",
        &[(PROBE, json!({"exec": {"command": [1]}}))],
        SampleVerdict::Unreadable,
    );
    table.add_sample(
        "exec of a string",
        &[(PROBE, json!({"exec": "true"}))],
        SampleVerdict::Unreadable,
    );
}

pub(super) fn add_files(table: &mut Table) {
    let timing = || (PROBE, json!({"periodSeconds": 5}));
    let at = |field: &str| format!("{}.{field}", pointer_to_path(FILE));
    let path = |path: &str| (FILE, json!({"volume": "work", "path": path}));
    table.add_accepted("a file", &[timing(), path("beat")]);
    table.add_accepted("a file and no timing", &[(PROBE, json!({})), path("beat")]);
    table.add_refused("file and exec", &[path("beat")], pointer_to_path(PROBE));
    let longest = "x".repeat(limits::FILE_PATH);
    for good in ["a/b", ".a", "..a/...", "a b/\u{e9}", longest.as_str()] {
        table.add_accepted(format!("file {good:?}"), &[timing(), path(good)]);
    }
    let longer = format!("{longest}x");
    for bad in [
        "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", "a\nb", "\u{7f}", &longer,
    ] {
        let name = format!("file {bad:?}");
        table.add_refused(name, &[timing(), path(bad)], at("path"));
    }
    let volume = |volume: &str| (FILE, json!({"volume": volume, "path": "a"}));
    for bad in ["", "..", "a/b", "A", "-a", &"v".repeat(64)] {
        let name = format!("volume {bad:?}");
        table.add_refused(name, &[timing(), volume(bad)], at("volume"));
    }
    let age = |age: Value| {
        let file = json!({"volume": "work", "path": "a", "notOlderThanSeconds": age});
        [timing(), (FILE, file)]
    };
    for good in [1, i32::MAX] {
        table.add_accepted(format!("a file of {good} s"), &age(json!(good)));
    }
    for bad in [0, -1] {
        let name = format!("a file of {bad} s");
        table.add_refused(name, &age(json!(bad)), at("notOlderThanSeconds"));
    }
    for missing in [json!({"volume": "work"}), json!({"path": "a"})] {
        let name = format!("a file of {missing}");
        let changes = [timing(), (FILE, missing)];
        table.add_sample(name, &changes, SampleVerdict::Unreadable);
    }
}

pub(super) fn add_http(table: &mut Table) {
    let at = |field: &str| format!("{}.httpGet{field}", pointer_to_path(PROBE));
    let probe =
        |field: &str, value: Value| [(PROBE, json!({"httpGet": {"port": 80, field: value}}))];
    add_url_paths(table);
    for good in ["", "HTTP", "HTTPS"] {
        table.add_accepted(format!("scheme {good:?}"), &probe("scheme", json!(good)));
    }
    for bad in ["http", "Https", "FTP"] {
        table.add_refused(
            format!("scheme {bad:?}"),
            &probe("scheme", json!(bad)),
            at(".scheme"),
        );
    }
    for good in ["", "HTTP1", "HTTP2"] {
        let protocol = probe("protocol", json!(good));
        table.add_accepted(format!("protocol {good:?}"), &protocol);
    }
    for bad in ["http2", "H2C", "HTTP/2"] {
        let protocol = probe("protocol", json!(bad));
        table.add_refused(format!("protocol {bad:?}"), &protocol, at(".protocol"));
    }
    let over_tls =
        |protocol: &str| json!({"httpGet": {"port": 80, "scheme": "HTTPS", "protocol": protocol}});
    table.add_accepted("HTTP1 over TLS", &[(PROBE, over_tls("HTTP1"))]);
    table.add_refused(
        "HTTP2 without a choice over TLS",
        &[(PROBE, over_tls("HTTP2"))],
        at(".protocol"),
    );
    header_values(table);
    let longest = "a".repeat(limits::HEADER_NAME);
    let header = |name: &str| json!([{"name": name, "value": ""}]);
    for good in ["A", "x-y", "1", "-", longest.as_str()] {
        table.add_accepted(
            format!("header {good:?}"),
            &probe("httpHeaders", header(good)),
        );
    }
    for bad in ["", "a b", "a_b", "a:", "é", "a\n", &format!("{longest}a")] {
        let headers = header(bad);
        table.add_refused(
            format!("header {bad:?}"),
            &probe("httpHeaders", headers),
            at(".httpHeaders[0].name"),
        );
    }
    let headers = |count: usize| json!(vec![json!({"name": "same", "value": "a b"}); count]);
    table.add_accepted(
        "most headers",
        &probe("httpHeaders", headers(limits::HEADERS)),
    );
    table.add_refused(
        "too many headers",
        &probe("httpHeaders", headers(limits::HEADERS + 1)),
        at(".httpHeaders"),
    );
    for handler in ["httpGet", "tcpSocket"] {
        let with_host = |host: &str| [(PROBE, json!({handler: {"port": 80, "host": host}}))];
        let place = format!("{}.{handler}.host", pointer_to_path(PROBE));
        table.add_accepted(format!("{handler} with an empty host"), &with_host(""));
        table.add_refused(
            format!("{handler} with a host"),
            &with_host("169.254.169.254"),
            place,
        );
    }
}

/// Paths that Go's `url.Parse` accepts or refuses.
fn add_url_paths(table: &mut Table) {
    let at = format!("{}.httpGet.path", pointer_to_path(PROBE));
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
        table.add_accepted(format!("path {good:?}"), &probe(good));
    }
    let too_long = format!("{longest}a");
    let bad = [
        "/%", "/%2", "/%zz", "/a%2", "/a#%zz", "/a%?b", "/a\n", "/\t", "/\r", "/\u{0}", "/\u{7f}",
        ":", "1:b", "a_b:c", "a b:c", "é:", "//a b/", "//h:x", "//[::1", "//u^@h", "//h%41/",
        "//h%", &too_long,
    ];
    for bad in bad {
        table.add_refused(format!("path {bad:?}"), &probe(bad), at.as_str());
    }
}

fn header_values(table: &mut Table) {
    let at = format!("{}.httpGet.httpHeaders", pointer_to_path(PROBE));
    let probe = |headers: Value| {
        [(
            PROBE,
            json!({"httpGet": {"port": 80, "httpHeaders": headers}}),
        )]
    };
    let header = |value: &str| probe(json!([{"name": "A", "value": value}]));
    let longest = "é".repeat(limits::HEADER_VALUE);
    for good in ["", "a b", "\t", "é", &longest] {
        table.add_accepted(format!("header of value {good:?}"), &header(good));
    }
    let too_long = format!("{longest}a");
    for bad in ["\n", "a\nb", "a\rb", "a\r\nHost: b", &too_long] {
        let name = format!("header of value {bad:?}");
        table.add_refused(name, &header(bad), format!("{at}[0].value"));
    }
    for missing in [
        json!({"name": "A"}),
        json!({"value": "a"}),
        json!({"name": "A", "value": null}),
    ] {
        let name = format!("a header {missing}");
        table.add_sample(name, &probe(json!([missing])), SampleVerdict::Unreadable);
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
    table.add_accepted("largest headers", &probe(together(limits::HEADERS_BYTES)));
    let more = together(limits::HEADERS_BYTES + 1);
    table.add_refused("too large headers", &probe(more), at);
}

pub(super) fn add_commands(table: &mut Table) {
    let at = format!("{}.exec.command", pointer_to_path(PROBE));
    let probe = |command: Value| [(PROBE, json!({"exec": {"command": command}}))];
    let words = |count: usize| json!(vec!["w"; count]);
    table.add_accepted("most words", &probe(words(limits::COMMAND_WORDS)));
    let more = words(limits::COMMAND_WORDS + 1);
    table.add_refused("too many words", &probe(more), at.as_str());
    let whole = "x".repeat(limits::COMMAND_CHARS);
    table.add_accepted("longest command", &probe(json!([whole])));
    let half = "é".repeat(limits::COMMAND_CHARS / 2);
    table.add_accepted("largest command", &probe(json!([half, half])));
    let more = json!([half, half, "x"]);
    table.add_refused("too large a command", &probe(more), at.as_str());
    let more = json!([whole + "x"]);
    table.add_refused("too long a word", &probe(more), format!("{at}[0]"));
    let service = "s".repeat(limits::GRPC_SERVICE);
    let grpc = |service: &str| [(PROBE, json!({"grpc": {"port": 1, "service": service}}))];
    table.add_accepted("longest service", &grpc(&service));
    let in_mode = |mode: &str| [(PROBE, json!({"grpc": {"port": 1, "mode": mode}}))];
    for good in ["", "Plaintext", "TLS"] {
        table.add_accepted(format!("mode {good:?}"), &in_mode(good));
    }
    for bad in ["tls", "mTLS"] {
        let place = format!("{}.grpc.mode", pointer_to_path(PROBE));
        table.add_refused(format!("mode {bad:?}"), &in_mode(bad), place);
    }
    let place = format!("{}.grpc.service", pointer_to_path(PROBE));
    table.add_refused("too long a service", &grpc(&(service + "s")), place);
}

pub(super) fn add_timings(table: &mut Table) {
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
            table.add_accepted(format!("{field} {good}"), &probe(json!(good)));
        }
        let at = format!("{}.{field}", pointer_to_path(PROBE));
        table.add_refused(format!("{field} -1"), &probe(json!(-1)), at);
        for unreadable in [json!(2_147_483_648_i64), json!(1.5), json!("1")] {
            let name = format!("{field} {unreadable}");
            table.add_sample(name, &probe(unreadable), SampleVerdict::Unreadable);
        }
    }
    for bad in [limits::TIMEOUT_SECONDS + 1, i32::MAX] {
        let probe = json!({"tcpSocket": {"port": 1}, "timeoutSeconds": bad});
        let at = format!("{}.timeoutSeconds", pointer_to_path(PROBE));
        table.add_refused(format!("timeoutSeconds {bad}"), &[(PROBE, probe)], at);
    }
    for seconds in [0, 1] {
        let probe = json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": seconds});
        let at = format!("{}.terminationGracePeriodSeconds", pointer_to_path(PROBE));
        table.add_refused(format!("grace period {seconds}"), &[(PROBE, probe)], at);
    }
}
