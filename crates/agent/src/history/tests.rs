use std::sync::Arc;

use clap::Parser;
use leadsman_core::podprobe::history::{HistoryHead, ProbeHistory};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: PrintHistoryArgs,
}

/// A folder, and a socket in it.
fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("history.sock");
    (folder, socket)
}

fn probe(pod: &str) -> ProbeHistory {
    let probe = json!({"namespace": "ns", "pod": pod, "uid": "u", "container": "c", "marker": "m", "probe": "p",
        "runs": [{"time": "2026-01-02T03:04:05.000000Z", "durationSeconds": 0.5, "result": "Failed", "output": "no\n"}]});
    serde_json::from_value(probe).unwrap()
}

/// What `leadsman-agent history` prints, on a thread of its own as it blocks.
async fn asked(socket: PathBuf, flags: &[&str]) -> Result<Vec<Value>, HistoryError> {
    let socket = socket.display().to_string();
    let words = ["history", "--history-socket", &socket].into_iter();
    let args = Line::parse_from(words.chain(flags.iter().copied())).args;
    let printed = tokio::task::spawn_blocking(move || {
        let mut out = Vec::new();
        print_history(&args, &mut out).map(|()| out)
    });
    let printed = String::from_utf8(printed.await.unwrap()?).unwrap();
    let lines = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    Ok(lines.collect())
}

/// Answers each question with a pod of the name that it asks for.
async fn echo(mut requests: HistoryRequests) {
    while let Some(request) = requests.recv().await {
        let pod = request.query.pod.unwrap_or_default();
        let _sent = request.reply.send(vec![probe(&pod)]);
    }
}

// PRB-26
#[tokio::test]
async fn a_question_is_answered_over_a_socket_that_only_its_owner_opens() {
    let (_folder, path) = folder();
    let socket = HistorySocket::bind_in_place(&path, 10).unwrap();
    let mode = std::fs::metadata(path.clone())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let (sender, requests) = mpsc::channel(1);
    let stop = CancellationToken::new();
    tokio::spawn(echo(requests));
    let serving = tokio::spawn(socket.serve_queries(sender, stop.clone()));
    let lines = asked(path.clone(), &["--namespace=ns", "--pod=one"])
        .await
        .unwrap();
    let head = HistoryHead {
        runs_kept: 10,
        probes: 1,
    };
    assert_eq!(
        serde_json::from_value::<HistoryHead>(lines[0].clone()).unwrap(),
        head
    );
    let told: ProbeHistory = serde_json::from_value(lines[1].clone()).unwrap();
    assert_eq!(told, probe("one"));
    assert_eq!(told.runs[0].output, Some(Arc::from("no\n")));
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_socket_that_an_earlier_container_left_is_replaced_and_nothing_else() {
    let (folder, path) = folder();
    drop(HistorySocket::bind_in_place(&path, 1).unwrap());
    assert!(path.exists(), "a container that ends leaves it");
    assert!(HistorySocket::bind_in_place(&path, 1).is_ok());
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let refused = HistorySocket::bind_in_place(&file, 1)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("(--history-socket): Address already in use"),
        "{refused}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[tokio::test]
async fn without_an_agent_or_an_answer_the_reason_is_said() {
    let (_folder, path) = folder();
    let nobody = asked(path.clone(), &[]).await.unwrap_err().to_string();
    assert!(nobody.contains("not with --history=0"), "{nobody}");
    let socket = HistorySocket::bind_in_place(&path, 1).unwrap();
    let (sender, requests) = mpsc::channel(1);
    drop(requests);
    tokio::spawn(socket.serve_queries(sender, CancellationToken::new()));
    let stopping = asked(path.clone(), &[]).await.unwrap_err();
    assert!(matches!(stopping, HistoryError::NoAnswer), "{stopping}");
}

#[tokio::test]
async fn nonsense_and_questions_without_end_are_not_answered() {
    let (_folder, path) = folder();
    let socket = HistorySocket::bind_in_place(&path, 1).unwrap();
    let (sender, requests) = mpsc::channel(1);
    tokio::spawn(echo(requests));
    tokio::spawn(socket.serve_queries(sender, CancellationToken::new()));
    for question in ["{\n".to_owned(), "x".repeat(2_000), "\n".to_owned()] {
        let mut stream = UnixStream::connect(path.clone()).await.unwrap();
        // The agent may close before it has read all.
        let _written = stream.write_all(question.as_bytes()).await;
        let mut answer = Vec::new();
        let _read = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{question}");
    }
    assert!(asked(path.clone(), &["--pod=p"]).await.is_ok());
}

// PRB-26
#[tokio::test]
async fn a_question_too_many_is_refused_and_the_others_go_on() {
    let (_folder, path) = folder();
    let socket = HistorySocket::bind_in_place(&path, 1).unwrap();
    let (sender, requests) = mpsc::channel(1);
    tokio::spawn(echo(requests));
    tokio::spawn(socket.serve_queries(sender, CancellationToken::new()));
    // They have connected, and do not ask yet.
    let mut first = Vec::new();
    for _ in 0..CONCURRENCY {
        first.push(UnixStream::connect(&path).await.unwrap());
    }
    let refused = asked(path.clone(), &[]).await;
    assert!(refused.is_err());
    let mut one = first.remove(0);
    one.write_all(b"{\"pod\":\"p\"}\n").await.unwrap();
    let mut answer = String::new();
    one.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.lines().count(), 2, "{answer}");
}
