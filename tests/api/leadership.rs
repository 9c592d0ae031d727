//! Two managers, one of which leads: what becomes of the marks when it is killed, stopped, cut off, left without an API
//! server, or ended. Each case has a control plane of its own, and each manager a user of its own, so that the audit
//! log tells who wrote.

pub(crate) mod duo;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use leadsman_tests::Link;
use leadsman_tests::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use self::duo::Duo;
use crate::Installation;

/// What a hand-over may take beyond the Lease's duration: one attempt, and a busy machine.
const SLACK: Duration = Duration::from_secs(6);

/// What the managers go through: were it to change what passes, or to miss some, the cases would say what is not so.
pub(crate) async fn a_link_counts_what_it_passes_on(_: Arc<Installation>) -> Result<()> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let link = Link::to(&format!("https://{}", server.local_addr()?)).await?;
    let mut near = TcpStream::connect(link.address).await?;
    let (mut far, _) = server.accept().await?;
    near.write_all(b"12345").await?;
    let mut five = [0; 5];
    far.read_exact(&mut five).await?;
    far.write_all(b"123").await?;
    drop(far);
    let mut answer = String::new();
    near.read_to_string(&mut answer).await?;
    ensure!((&five, &*answer) == (b"12345", "123"), "{five:?}, {answer}");
    ensure!(link.passed() == [5, 3], "{:?}", link.passed());
    Ok(())
}

pub(crate) async fn a_killed_leader_is_succeeded_within_the_lease(
    _: Arc<Installation>,
) -> Result<()> {
    let mut duo = Duo::raise(3).await?;
    let (mark, history) = duo.record_from_now().await?;
    // In the midst of its writes.
    let (first, rest) = duo.halves();
    duo.report_verdicts(&first, "Failed").await?;
    let killed = Instant::now();
    duo.kill(0).await?;
    duo.report_verdicts(&rest, "Failed").await?;
    duo.wait_until_led_by(1).await?;
    let took = killed.elapsed();
    ensure!(
        took < Duration::from_secs(3) + SLACK,
        "the Lease was taken after {took:?}"
    );
    duo.wait_for_marks("Failed").await?;
    // The audit log may show a write that met its sender's death as a failure.
    duo.wrote_each_pod(mark, 0..=1).await?;
    duo.never_went_back(&history, &["Succeeded", "Failed"])
        .await?;
    duo.end().await
}

pub(crate) async fn a_leader_that_wakes_after_its_lease_writes_nothing(
    _: Arc<Installation>,
) -> Result<()> {
    let duo = Duo::raise(3).await?;
    let (mark, history) = duo.record_from_now().await?;
    duo.signal(0, Signal::SIGSTOP)?;
    duo.report_verdicts(&duo.pods(), "Failed").await?;
    duo.wait_until_led_by(1).await?;
    duo.wait_for_marks("Failed").await?;
    duo.report_verdicts(&duo.pods(), "Unknown").await?;
    duo.wait_for_marks("Unknown").await?;
    // A write is in the audit log some time after it is observed: those until here belong before the next mark.
    duo.wrote_each_pod(mark, 2..=2).await?;
    // What the old leader hears first is what was true when it was stopped.
    let mark = duo.mark()?;
    duo.signal(0, Signal::SIGCONT)?;
    duo.wait_for_log(0, "lost leadership").await?;
    duo.wait_for_log(0, "the Lease is held by another").await?;
    duo.report_verdicts(&duo.pods(), "Succeeded").await?;
    duo.wait_for_marks("Succeeded").await?;
    duo.wrote_nothing(0, mark)?;
    duo.wrote_each_pod(mark, 1..=1).await?;
    let states = ["Succeeded", "Failed", "Unknown", "Succeeded"];
    duo.never_went_back(&history, &states).await?;
    duo.end().await
}

pub(crate) async fn a_leader_that_is_cut_off_writes_nothing_afterwards(
    _: Arc<Installation>,
) -> Result<()> {
    let duo = Duo::raise(3).await?;
    let (mark, history) = duo.record_from_now().await?;
    duo.link.close();
    duo.report_verdicts(&duo.pods(), "Failed").await?;
    duo.wait_for_log(0, "lost leadership").await?;
    // Until here it may write what was due before, such as a status.
    let lost = duo.mark()?;
    duo.wait_until_led_by(1).await?;
    duo.wait_for_marks("Failed").await?;
    duo.link.open();
    duo.wait_for_log(0, "the Lease is held by another").await?;
    duo.report_verdicts(&duo.pods(), "Succeeded").await?;
    duo.wait_for_marks("Succeeded").await?;
    duo.wrote_nothing(0, lost)?;
    duo.never_went_back(&history, &["Succeeded", "Failed", "Succeeded"])
        .await?;
    duo.wrote_each_pod(mark, 2..=2).await?;
    duo.end().await
}

pub(crate) async fn after_an_outage_one_manager_writes_all(_: Arc<Installation>) -> Result<()> {
    let duo = Duo::raise(3).await?;
    let (mark, history) = duo.record_from_now().await?;
    duo.plane.stop_apiserver().await?;
    duo.wait_for_log(0, "lost leadership").await?;
    duo.plane.start_apiserver().await?;
    duo.report_verdicts(&duo.pods(), "Failed").await?;
    duo.wait_for_marks("Failed").await?;
    duo.wrote_each_pod(mark, 1..=1).await?;
    duo.one_wrote_all(mark)?;
    duo.never_went_back(&history, &["Succeeded", "Failed"])
        .await?;
    duo.end().await
}

/// With a Lease that nobody would wait for.
pub(crate) async fn a_leader_that_ends_hands_over_at_once(_: Arc<Installation>) -> Result<()> {
    let mut duo = Duo::raise(120).await?;
    let (mark, history) = duo.record_from_now().await?;
    // A standby is ready, has seen everything, and writes nothing, the Lease included.
    for state in ["Failed", "Unknown", "Succeeded"] {
        duo.report_verdicts(&duo.pods(), state).await?;
        duo.wait_for_marks(state).await?;
    }
    duo.wait_until_standing_by(1).await?;
    duo.wrote_nothing(1, mark)?;
    duo.wrote_no_lease(1, mark)?;

    let (first, rest) = duo.halves();
    duo.report_verdicts(&first, "Failed").await?;
    let mark = duo.mark()?;
    let ended = Instant::now();
    duo.terminate(0).await?;
    duo.report_verdicts(&rest, "Failed").await?;
    duo.wait_until_led_by(1).await?;
    duo.wait_for_marks("Failed").await?;
    let took = ended.elapsed();
    ensure!(took < Duration::from_secs(20) + SLACK, "it took {took:?}");
    ensure!(
        duo.transitions().await? == 1,
        "{} transitions",
        duo.transitions().await?
    );
    duo.released(0, mark)?;
    let states = ["Succeeded", "Failed", "Unknown", "Succeeded", "Failed"];
    duo.never_went_back(&history, &states).await?;
    duo.end().await
}
