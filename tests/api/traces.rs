//! Traces of a change of a verdict: a collector gets the parts of agent and manager as one.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leadsman_cri::fake::Fake;
use leadsman_process::traces::collector::{CollectedSpan, FakeCollector};
use leadsman_tests::wait::PATIENCE;
use tokio::time::timeout;

use crate::Installation;
use crate::fake_runtime::{NODE, PROBED, commands_exit_with, probed_pod};
use crate::marks::marked;
use crate::rights::Started;
use crate::stage::PLACES;

/// The spans of one trace, by name.
struct Trace(Vec<CollectedSpan>);

impl Trace {
    /// The trace of the pod's change to this state, if all of it has come.
    fn of(spans: &[CollectedSpan], state: &str) -> Option<Self> {
        let mut changes = spans.iter().filter(|span| span.name == "change verdict");
        let change = changes.find(|span| span.attributes["leadsman.verdict"] == state)?;
        let spans = spans.iter().filter(|span| span.trace == change.trace);
        let trace = Self(spans.cloned().collect());
        let names = ["run probe", "write status", "mark pod", "write"];
        let is_whole = names.iter().all(|name| trace.span(name).is_ok());
        is_whole.then_some(trace)
    }

    fn span(&self, name: &str) -> Result<&CollectedSpan> {
        let mut spans = self.0.iter().filter(|span| span.name == name);
        let span = spans.next();
        span.with_context(|| format!("no span {name:?} in {:#?}", self.0))
    }

    /// Which service each span is of, and which span it follows from.
    fn is_linked(&self) -> Result<()> {
        for (name, service, parent) in [
            ("run probe", "leadsman-agent", "change verdict"),
            ("write status", "leadsman-agent", "change verdict"),
            ("mark pod", "leadsman-manager", "change verdict"),
            ("write", "leadsman-manager", "mark pod"),
        ] {
            let (span, parent) = (self.span(name)?, self.span(parent)?);
            ensure!(span.service == service, "{span:#?}");
            ensure!(span.parent == parent.id, "{span:#?} in {:#?}", self.0);
            ensure!(span.error.is_none(), "{span:#?}");
            // Both processes have the clock of this machine.
            ensure!(span.began <= span.ended, "{span:#?}");
            ensure!(parent.began <= span.began, "{span:#?} in {:#?}", self.0);
        }
        let change = self.span("change verdict")?;
        ensure!(change.parent.is_empty(), "{change:#?}");
        ensure!(change.service == "leadsman-agent", "{change:#?}");
        Ok(())
    }

    fn says(&self, span: &str, attributes: &[(&str, &str)]) -> Result<()> {
        let span = self.span(span)?;
        for (name, value) in attributes {
            let said = span.attributes.get(*name).map(String::as_str);
            ensure!(said == Some(*value), "{name} of {span:#?}");
        }
        Ok(())
    }
}

pub(crate) async fn a_change_of_a_verdict_is_one_trace_of_both_processes(
    _: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let collector = FakeCollector::start().await?;
    let endpoint = format!("--tracing-endpoint={}", collector.address);
    let installation = Installation::raise_idle().await?;
    installation.start_manager_with(&[&endpoint]).await?;
    let runtime = Fake::start();
    let scene = probed_pod(&installation.client, &runtime).await?;
    let plane = &installation.plane;
    let kubeconfig = plane.kubeconfig_for("system:admin", &["system:masters"])?;
    let socket = runtime.socket_path();
    let agent = Started::traced_agent(plane, &kubeconfig, NODE, &socket, &endpoint).await?;
    for (exit_code, state) in [(0, "Succeeded"), (1, "Failed")] {
        commands_exit_with(&runtime, exit_code);
        scene.wait_for_marks(PROBED.1, marked(state)).await?;
        let all = collector.wait_for(|spans| Trace::of(spans, state).is_some());
        let all = timeout(PATIENCE, all).await;
        let all = all.with_context(|| format!("{state}: {:#?}", collector.collected_spans()))?;
        let trace = Trace::of(&all, state).context("waited for")?;
        trace.is_linked()?;
        let common = [
            ("k8s.namespace.name", PROBED.0),
            ("k8s.pod.name", PROBED.1),
            ("leadsman.marker", "every-second"),
            ("leadsman.probe", "Idle"),
            ("leadsman.verdict", state),
        ];
        trace.says("mark pod", &common)?;
        trace.says("change verdict", &common)?;
        trace.says("change verdict", &[("k8s.node.name", NODE)])?;
        let result = state.to_lowercase();
        trace.says("run probe", &[("leadsman.result", &result)])?;
        trace.says("write", &[("leadsman.write", "pod_marks")])?;
    }
    agent.end().await?;
    installation.end().await;
    Ok(())
}
