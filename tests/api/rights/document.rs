//! `docs/security.md` says what is so: its table is the one that is tested, and what it has people type has the answers
//! that it gives.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use leadsman_testkit::ControlPlane;
use leadsman_tests::Scene;
use tokio::process::Command;

use super::table::{MANAGER, NamedIn, Row, TABLE, printed, table};
use crate::Installation;

const DOCUMENT: &str = include_str!("../../../docs/security.md");
/// What each question begins with; its answer is behind a `#`.
const QUESTION: &str = "kubectl ";

pub(crate) async fn the_table_is_complete_and_documented(_: Arc<Installation>) -> Result<()> {
    for serverless in [false, true] {
        let (printed, table) = (printed(serverless).await?, table(serverless));
        for grant in &printed {
            ensure!(table.contains(grant), "no row has the right {grant:?}");
        }
        for grant in &table {
            ensure!(printed.contains(grant), "nobody is given {grant:?}");
        }
    }
    let expected: Vec<_> = TABLE.iter().map(shown).collect();
    let ours = |line: &&str| line.starts_with("| manager |") || line.starts_with("| agent |");
    let found: Vec<_> = DOCUMENT.lines().filter(ours).collect();
    ensure!(
        found == expected,
        "the table of docs/security.md is not that of the tests, which is\n{}",
        expected.join("\n")
    );
    Ok(())
}

/// A row as the document has it.
fn shown(row: &Row) -> String {
    let account = if row.account == MANAGER {
        "manager"
    } else {
        "agent"
    };
    let mut on = if row.group.is_empty() {
        format!("`{}`", row.resource)
    } else {
        format!("`{}` of `{}`", row.resource, row.group)
    };
    if !row.names.is_empty() {
        let names = row.names.iter().map(|name| format!("`{name}`"));
        on = format!("{on}: {}", names.collect::<Vec<_>>().join(", "));
    }
    if !row.namespace.is_empty() {
        on = format!("{on}, in `{}`", row.namespace);
    }
    let verbs: Vec<_> = row.verbs.iter().map(|(verb, _)| *verb).collect();
    let serverless = if row.serverless { " ¹" } else { "" };
    let named_in = match row.named_in {
        NamedIn::Readyz => "`/readyz`, log",
        NamedIn::Log => "log",
    };
    let (verbs, needed_to) = (verbs.join(" "), row.needed_to);
    format!("| {account} | {on}{serverless} | {verbs} | {needed_to} | {named_in} |")
}

/// A line that people are told to type, and what `kubectl` answers.
struct Question {
    line: &'static str,
    answer: &'static str,
}

pub(crate) async fn questions_of_the_document_have_its_answers(
    installation: Arc<Installation>,
) -> Result<()> {
    // What the document calls NAMESPACE.
    let scene = Scene::new(&installation.client, "questions").await?;
    let lines = DOCUMENT.lines().filter(|line| line.starts_with(QUESTION));
    let questions = lines.map(|line| {
        let (line, answer) = line.split_once('#').context("a line without an answer")?;
        let (line, answer) = (line.trim(), answer.trim());
        Ok(Question { line, answer })
    });
    let questions = questions.collect::<Result<Vec<_>>>()?;
    ensure!(questions.len() > 5, "{} questions", questions.len());
    let asked = questions
        .iter()
        .map(|question| ask(&installation.plane, &scene, question));
    try_join_all(asked).await?;
    Ok(())
}

async fn ask(plane: &ControlPlane, scene: &Scene, question: &Question) -> Result<()> {
    let words = question.line.split(' ').skip(1);
    let words = words.map(|word| word.replace("NAMESPACE", &scene.ns));
    let output = Command::new(plane.programs()?.join("kubectl"))
        .env("KUBECACHEDIR", plane.folder().join("kubectl"))
        .args(words)
        .arg("--kubeconfig")
        .arg(plane.admin_kubeconfig())
        .kill_on_drop(true)
        .output()
        .await?;
    let (answer, problem) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let is_expected = match question.answer {
        "yes" | "no" => answer.split_whitespace().next() == Some(question.answer),
        printed => answer.trim() == printed,
    };
    ensure!(
        is_expected,
        "`{}` answers {answer:?} {problem:?}",
        question.line
    );
    Ok(())
}
