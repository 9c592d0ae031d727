//! The table of `docs/security.md` is the one that is tested.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::table::{Given, MANAGER, NamedIn, Row, TABLE, printed, table};
use crate::Installation;

const DOCUMENT: &str = include_str!("../../../docs/security.md");

pub(crate) async fn the_table_is_complete_and_documented(_: Arc<Installation>) -> Result<()> {
    for gates in Given::ALL {
        let (printed, table) = (printed(gates).await?, table(gates));
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
    let given = match row.given {
        Given::Always => "",
        Given::WithWebhooks => " ¹",
        Given::WithSets => " ²",
        Given::WithCron => " ³",
        Given::WithBroadcast => " ⁴",
        Given::WithCloneSets => " ⁵",
    };
    let named_in = match row.named_in {
        NamedIn::Readyz => "`/readyz`, log",
        NamedIn::Log => "log",
    };
    let (verbs, needed_to) = (verbs.join(" "), row.needed_to);
    format!("| {account} | {on}{given} | {verbs} | {needed_to} | {named_in} |")
}
