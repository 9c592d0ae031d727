//! For `--keep`: what to try on the cluster that stays up. A case of `tests/node/examples.rs` types the same commands.

use anyhow::Result;

use crate::cluster::Demo;

/// Five commands, each after a sentence on what it shows.
const TOUR: &str = include_str!("../tour.md");

/// Prints how to reach the cluster and what to try.
pub(crate) fn print(cluster: &Demo) -> Result<()> {
    println!(
        "
== The cluster stays up. In another terminal, in this folder:

  export KUBECONFIG={} PATH=\"{}:$PATH\"

Five commands to begin with:",
        cluster.bed.admin_kubeconfig().display(),
        cluster.bed.tools()?.display()
    );
    for (number, (sentence, command)) in steps(TOUR).into_iter().enumerate() {
        println!("\n{:>2}  {sentence}\n    {command}", number + 1);
    }
    println!(
        "
Then: a marker of your own (docs/tutorial.md) and a sidecar of your own (docs/tutorial-sidecars.md), step by step on this cluster;
examples/README.md. The sidecars of the demo's shop: kubectl leadsman drift proxy. leadsman itself: kubectl -n leadsman-system get pods.

Ctrl-C here ends the cluster and takes everything away."
    );
    Ok(())
}

/// The commands of a page, each with the line of text before it.
fn steps(page: &str) -> Vec<(&str, &str)> {
    let mut sentence = "";
    let mut steps = Vec::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push((sentence, command));
        } else if !line.starts_with("```") {
            sentence = line;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tour_has_five_commands_and_ends_with_explain() {
        let steps = steps(TOUR);
        assert_eq!(steps.len(), 5, "{steps:?}");
        assert!(steps[4].1.starts_with("kubectl leadsman explain "));
        let described = |(sentence, _): &(&str, &str)| sentence.ends_with(['.', '?']);
        assert!(steps.iter().all(described), "{steps:?}");
    }
}
