//! Lists of a server whose objects are large or slow.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use http::Response;
use http::request::Request as HttpRequest;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::time::sleep;

use super::*;

/// The objects that were asked for at once, and the bytes that were read of the reply.
type Asked = Arc<Mutex<Vec<(usize, usize)>>>;

/// A server of nodes of these sizes, each of which takes so long.
fn node_server(sizes: Vec<usize>, each: Duration) -> (ApiServer, Asked) {
    let asked = Asked::default();
    let requests = Arc::clone(&asked);
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let number = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let found = pairs.find(|(key, _)| *key == name);
            found.map(|(_, value)| value.parse::<usize>().unwrap())
        };
        let first = number("continue").unwrap_or(0);
        let after = sizes.len().min(first + number("limit").unwrap());
        let token = Some(after).filter(|after| *after < sizes.len());
        let token = token.map(|after| after.to_string()).unwrap_or_default();
        let left = sizes.len() - after;
        let metadata =
            json!({"continue": token, "resourceVersion": "7", "remainingItemCount": left});
        // Made when they are read: most of a page that is too long never is.
        let of_page: Vec<_> = sizes[first..after].into();
        let nodes = of_page.into_iter().enumerate();
        let nodes = nodes.map(move |(at, size)| {
            let comma = if at == 0 { "" } else { "," };
            let filler = "x".repeat(size);
            format!(
                r#"{comma}{{"filler":"{filler}","metadata":{{"name":"n{}"}}}}"#,
                first + at
            )
        });
        let head = std::iter::once(r#"{"items":["#.to_owned());
        let tail = std::iter::once(format!(r#"],"metadata":{metadata}}}"#));
        let pieces = head.chain(nodes).chain(tail);
        let request = requests.lock().unwrap().len();
        requests.lock().unwrap().push((after - first, 0));
        let read = Arc::clone(&requests);
        let pieces = futures::stream::iter(pieces).inspect(move |piece| {
            read.lock().unwrap()[request].1 += piece.len();
        });
        async move {
            sleep(each * u32::try_from(after - first).unwrap()).await;
            let body = axum::body::Body::from_stream(pieces.map(Ok::<_, std::io::Error>));
            Ok::<_, std::io::Error>(Response::new(body))
        }
    });
    (ApiServer::new(Client::new(service, "default")), asked)
}

/// The names of all nodes, in the order of the list; a page that comes too late is asked for again.
async fn list_all(server: &ApiServer, page: u32) -> Vec<String> {
    let target = ListTarget::all_of::<Node>().with_page_size(page);
    let (mut names, mut token, mut paging) = (Vec::new(), None, Paging::default());
    loop {
        let read = target.read_page::<Node>(server, token.clone(), &mut paging);
        let Ok(page) = read.await else { continue };
        let objects = page.objects.into_iter();
        names.extend(objects.filter_map(|node| node.metadata.name));
        token = page.token;
        if token.is_none() {
            return names;
        }
    }
}

fn names_up_to(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("n{at}")).collect()
}

// PPM-11
#[tokio::test(start_paused = true)]
async fn of_a_page_of_large_objects_no_more_is_read_than_a_body_may_have() {
    const LARGE: usize = 1 << 20;
    let mut sizes = vec![10; 100];
    sizes.extend([LARGE; 30]);
    sizes.extend([10; 470]);
    let (server, asked) = node_server(sizes, Duration::ZERO);
    assert_eq!(list_all(&server, 100).await, names_up_to(600));
    let asked = asked.lock().unwrap();
    let most = asked.iter().map(|(_, read)| *read).max();
    assert!(most.unwrap() <= LONGEST_BODY + 2 * LARGE, "{asked:?}");
    let counts: Vec<_> = asked.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts[..5], [100, 100, 50, 25, 12], "{asked:?}");
    let last_whole = counts[counts.len() - 2];
    assert_eq!(last_whole, 100, "once they are small again: {counts:?}");
    assert!(counts.len() < 30, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_very_long_list_comes_in_larger_pages() {
    let (server, asked) = node_server(vec![10; 2000], Duration::ZERO);
    assert_eq!(list_all(&server, 2).await, names_up_to(2000));
    let asked = asked.lock().unwrap();
    let counts: Vec<_> = asked.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts[..6], [2, 2, 4, 8, 15, 15], "1998 are left at first");
    assert!(counts[5..].is_sorted_by(|one, next| one >= next));
    assert_eq!(counts[counts.len() - 2], 2, "no page is shorter");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_has_grown_too_long_leaves_none_shorter_than_by_rights() {
    const LARGE: usize = 2 << 20;
    let mut sizes = vec![10; 600];
    sizes.extend([LARGE; 20]);
    sizes.extend([10; 1400]);
    let (server, asked) = node_server(sizes, Duration::ZERO);
    assert_eq!(list_all(&server, 4).await, names_up_to(2020));
    let asked = asked.lock().unwrap();
    let counts: Vec<_> = asked.iter().map(|(count, _)| *count).collect();
    assert!(counts.iter().any(|count| *count > 8), "{counts:?}");
    let but_last = &counts[..counts.len() - 1];
    assert!(but_last.iter().all(|count| *count >= 4), "{counts:?}");
    let most = asked.iter().map(|(_, read)| *read).max();
    assert!(most.unwrap() > LONGEST_BODY, "a page was too long");
}

#[test]
fn a_list_after_one_that_has_grown_asks_for_fewer_objects_at_once() {
    let mut paging = Paging {
        doublings: 2,
        ..Paging::default()
    };
    assert_eq!(paging.limit(100), 100);
    paging.shorten(100);
    assert_eq!(paging.limit(100), 50);
}

#[tokio::test(start_paused = true)]
async fn the_largest_object_that_is_stored_fits_into_a_page_of_its_own() {
    let (server, asked) = node_server(vec![6 * (3 << 19); 4], Duration::ZERO);
    assert_eq!(list_all(&server, 4).await, names_up_to(4));
    let counts: Vec<_> = asked
        .lock()
        .unwrap()
        .iter()
        .map(|(count, _)| *count)
        .collect();
    assert_eq!(counts, [4, 2, 1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_comes_too_late_is_asked_for_with_half_of_its_objects() {
    let (server, asked) = node_server(vec![10; 100], Duration::from_millis(800));
    assert_eq!(list_all(&server, 100).await, names_up_to(100));
    let counts: Vec<_> = asked
        .lock()
        .unwrap()
        .iter()
        .map(|(count, _)| *count)
        .collect();
    // 80 s of 5, 40 of 15, 20 of 30.
    assert_eq!(counts[..3], [100, 50, 25]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_no_page_can_have_is_named_in_the_error() {
    let (server, _) = node_server(vec![LONGEST_BODY, 10], Duration::ZERO);
    let target = ListTarget::all_of::<Node>();
    let mut paging = Paging::default();
    let read = target.read_page::<Node>(&server, None, &mut paging);
    let Err(Disposition::Refused { reason }) = read.await else {
        panic!("it cannot be read");
    };
    assert!(
        reason.contains("one of the nodes has more than"),
        "{reason}"
    );
}
