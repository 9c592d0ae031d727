//! The API server is killed and comes back after a time: how soon the marks are right again, whether readiness tells the
//! truth meanwhile, and how often anything is listed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leadsman_testkit::leadsman::MANAGER;
use leadsman_tests::wait_for_answer;
use tokio::time::{Instant, sleep};

use crate::Installation;
use crate::marks::{idle, marked};
use crate::stage::Stage;

/// From the API server's return to the last right mark: no two attempts are further apart than 5 s, and what there is
/// to read and to write afterwards takes a moment on a busy machine.
const RIGHT_WITHIN: Duration = Duration::from_secs(8);
/// From the first look at `/readyz` that says yes to the last right mark.
const TRUE_WITHIN: Duration = Duration::from_secs(3);
/// Between two looks at `/readyz`.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) async fn after_25_seconds_without_an_api_server_marks_are_right_at_once(
    _: Arc<Installation>,
) -> Result<()> {
    an_outage_of(Duration::from_secs(25)).await
}

/// Longer than any back-off that doubles needs to reach its longest distance.
pub(crate) async fn after_64_seconds_without_an_api_server_marks_are_right_at_once(
    _: Arc<Installation>,
) -> Result<()> {
    an_outage_of(Duration::from_secs(64)).await
}

async fn an_outage_of(length: Duration) -> Result<()> {
    let stage = Stage::raise().await?;
    let installation = &stage.installation;
    stage.scene().marker("m", idle()).await?;
    installation.start_manager().await?;
    stage
        .crowd
        .report_verdicts(&stage.crowd.pods, &["m#Idle"], "Succeeded")
        .await?;
    stage
        .crowd
        .wait_for_marks(&stage.crowd.pods, &marked("Succeeded"))
        .await?;
    ensure!(stage.is_ready().await?, "it is not ready");
    stage.wait_until_idle().await?;

    let mark = installation.plane.audit_mark()?;
    installation.plane.stop_apiserver().await?;
    let begun = Instant::now();
    wait_for_answer("a manager that is not ready", || async {
        Ok((!stage.is_ready().await?).then_some(()))
    })
    .await?;
    // Nothing happens in an outage but that time passes.
    sleep(length.saturating_sub(begun.elapsed())).await;
    ensure!(!stage.is_ready().await?, "ready without an API server");
    installation.plane.start_apiserver().await?;

    let back = Instant::now();
    let ready = async {
        while !stage.is_ready().await? {
            sleep(LOOK).await;
        }
        Ok::<_, anyhow::Error>(back.elapsed())
    };
    let right = async {
        let pods = &stage.crowd.pods;
        stage
            .crowd
            .report_verdicts(pods, &["m#Idle"], "Failed")
            .await?;
        let reported = back.elapsed();
        stage.crowd.wait_for_marks(pods, &marked("Failed")).await?;
        Ok((reported, back.elapsed()))
    };
    let (ready, (reported, right)) = tokio::try_join!(ready, right)?;
    eprintln!(
        "after an outage of {length:?}: reported after {reported:.1?}, marked after {right:.1?}, ready after {ready:.1?}"
    );
    let lists = lists(installation, mark)?;
    eprintln!("lists: {lists:?}");
    for (kind, count) in lists {
        ensure!(count <= 1, "{kind} was listed {count} times");
    }
    ensure!(right <= RIGHT_WITHIN, "marks were right after {right:?}");
    let lie = right.saturating_sub(ready.max(reported));
    ensure!(lie <= TRUE_WITHIN, "ready {lie:?} before marks were right");
    stage.wait_until_idle().await?;
    installation.stop_manager().await
}

/// How often the manager has listed each kind, pages counted as one, since then.
fn lists(
    installation: &Installation,
    mark: leadsman_testkit::audit::Mark,
) -> Result<BTreeMap<String, usize>> {
    let mut lists = BTreeMap::new();
    for request in installation.plane.audit(mark).context("the audit log")? {
        let first = !request.uri.contains("continue=");
        if request.user == MANAGER && request.verb == "list" && request.code == 200 && first {
            // Leases and CRDs are followed by name, each by a list of its own.
            let (path, query) = request.uri.split_once('?').unwrap_or((&request.uri, ""));
            let named = query
                .split('&')
                .find(|part| part.starts_with("fieldSelector="));
            let listed = format!("{path} {}", named.unwrap_or_default());
            *lists.entry(listed).or_default() += 1;
        }
    }
    Ok(lists)
}
