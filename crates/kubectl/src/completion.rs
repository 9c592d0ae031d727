//! Values for the shell: namespaces, contexts, markers and pods.
//!
//! From 1.26 on, kubectl asks an executable `kubectl_complete-leadsman` for the candidates (kubernetes/kubernetes#105867):
//! its arguments are the words after `kubectl leadsman`, the last one unfinished. Each line of the answer is a
//! candidate and, after a tab, its description; the last one is a directive of cobra's. So whatever completes kubectl,
//! in bash, zsh and fish, completes this too. For `kubectl-leadsman` by itself, clap's own scripts do.
//!
//! A shell waits for the answer: what cannot be had at once is left out.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use kube::config::Kubeconfig;
use tokio::time::timeout;

use crate::connection::ConnectionFlags;
use crate::output;
use crate::resources::{ApiResource, CLONE_SETS, KINDS, MARKERS, NAMESPACES, PODS, SIDECAR_SETS};

/// A shell waits at most so long.
const PATIENCE: Duration = Duration::from_secs(2);
/// cobra's `ShellCompDirectiveNoFileComp` and `NoSpace` (`completions.go`): do not offer files; go on in the same word.
const NO_FILES: u8 = 4;
const NO_SPACE: u8 = 2;

/// Prints candidates for the last of these words, as kubectl wants them.
pub fn complete_for_kubectl(mut command: clap::Command, words: Vec<OsString>) -> ExitCode {
    let words: Vec<_> = std::iter::once(OsString::from("leadsman"))
        .chain(words)
        .collect();
    let last = words.len() - 1;
    let flag = flag_before_value(&words[last]);
    let candidates = clap_complete::engine::complete(&mut command, words, last, None);
    let (mut text, mut directive) = (String::new(), NO_FILES);
    for candidate in candidates
        .unwrap_or_default()
        .iter()
        .filter(|one| !one.is_hide_set())
    {
        let whole = candidate.get_value().to_string_lossy();
        let value = whole.strip_prefix(&*flag).unwrap_or(&whole);
        let description = candidate
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        // One line is one candidate.
        let help = description.lines().next().unwrap_or_default();
        text.extend([value, "\t", help, "\n"]);
        // A kind, which is followed by a name in the same word.
        if value.ends_with('/') {
            directive |= NO_SPACE;
        }
    }
    let printed = writeln!(
        std::io::stdout(),
        "{}:{directive}",
        output::escape_harmful(&text)
    );
    if printed.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// `--flag=` of `--flag=value`. Cobra's scripts put it before the candidates (`completions.go` and the scripts beside it).
fn flag_before_value(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let end = word.find('=').filter(|_| word.starts_with('-'));
    end.map(|end| word[..=end].to_owned()).unwrap_or_default()
}

pub(crate) fn complete_contexts(current: &OsStr) -> Vec<CompletionCandidate> {
    let contexts = read_kubeconfig().contexts.into_iter();
    candidates_beginning_with(current, contexts.map(|context| context.name))
}

pub(crate) fn complete_clusters(current: &OsStr) -> Vec<CompletionCandidate> {
    let clusters = read_kubeconfig().clusters.into_iter();
    candidates_beginning_with(current, clusters.map(|cluster| cluster.name))
}

pub(crate) fn complete_users(current: &OsStr) -> Vec<CompletionCandidate> {
    let users = read_kubeconfig().auth_infos.into_iter();
    candidates_beginning_with(current, users.map(|user| user.name))
}

fn read_kubeconfig() -> Kubeconfig {
    let kubeconfig = match flag_value("--kubeconfig") {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    kubeconfig.unwrap_or_default()
}

pub(crate) fn complete_namespaces(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates_beginning_with(current, complete_names(NAMESPACES))
}

pub(crate) fn complete_markers(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates_beginning_with(current, complete_names(MARKERS))
}

pub(crate) fn complete_sidecar_sets(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates_beginning_with(current, complete_names(SIDECAR_SETS))
}

/// `cloneset/NAME`, or names after the kind as a word of its own.
pub(crate) fn complete_clone_sets(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<_> = std::env::args().collect();
    let is_name = kind_before(&words, &current.to_string_lossy()) == Some(CLONE_SETS);
    let prefix = if is_name { "" } else { "cloneset/" };
    let names = complete_names(CLONE_SETS).into_iter();
    candidates_beginning_with(current, names.map(|name| format!("{prefix}{name}")))
}

pub(crate) fn complete_pods(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = complete_names(PODS);
    // A name that was begun without a kind goes on without one.
    let is_plain = !current.to_string_lossy().contains('/') && !current.is_empty();
    let prefix = if is_plain { "" } else { "pod/" };
    let names = names.into_iter().map(|name| format!("{prefix}{name}"));
    candidates_beginning_with(current, names)
}

/// `pod/NAME`, `deployment/NAME`, …: first the kinds, then the names of one. After a kind as a word of its own, names; without
/// a kind a name is a pod's.
pub(crate) fn complete_targets(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    if let Some((kind, _)) = text.split_once('/') {
        let Some(resource) = resource_of(kind) else {
            return Vec::new();
        };
        let names = complete_names(resource).into_iter();
        return candidates_beginning_with(current, names.map(|name| format!("{kind}/{name}")));
    }
    let words: Vec<_> = std::env::args().collect();
    if let Some(resource) = kind_before(&words, &text) {
        return candidates_beginning_with(current, complete_names(resource));
    }
    let beginnings = KINDS.iter().map(|(_, names)| format!("{}/", names[0]));
    let kinds = candidates_beginning_with(current, beginnings);
    // No kind begins so: what is typed may be the name of a pod.
    if kinds.is_empty() {
        return candidates_beginning_with(current, complete_names(PODS));
    }
    kinds
}

fn resource_of(kind: &str) -> Option<ApiResource> {
    let known = KINDS.iter().find(|(_, names)| names.contains(&kind));
    known.map(|(resource, _)| *resource)
}

/// The kind that is the word before the one that is completed.
fn kind_before(words: &[String], current: &str) -> Option<ApiResource> {
    let mut pairs = words.windows(2).rev();
    let pair = pairs.find(|pair| pair[1] == current)?;
    resource_of(&pair[0])
}

fn candidates_beginning_with(
    current: &OsStr,
    values: impl IntoIterator<Item = String>,
) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let values = values
        .into_iter()
        .filter(|value| value.starts_with(&*current));
    values.map(CompletionCandidate::new).collect()
}

/// The last value of a flag among the words that are being completed: clap has not parsed them yet.
fn flag_value(long: &str) -> Option<String> {
    let words: Vec<_> = std::env::args().collect();
    flag_values(&words, long).pop()
}

/// The values of a flag. The namespace's has a short form too.
fn flag_values(words: &[String], long: &str) -> Vec<String> {
    let short = (long == "--namespace").then_some("-n");
    let places = words.iter().enumerate().filter_map(|(place, word)| {
        if word == long || Some(word.as_str()) == short {
            return words.get(place + 1).cloned();
        }
        let joined = word
            .strip_prefix(long)
            .and_then(|rest| rest.strip_prefix('='))
            .or_else(|| {
                let rest = word.strip_prefix(short?)?;
                Some(rest.strip_prefix('=').unwrap_or(rest))
            });
        joined.map(str::to_owned)
    });
    places.filter(|value| !value.is_empty()).collect()
}

/// The cluster and the user that the words name, as the verb will have them.
fn connection_from_words(words: &[String]) -> ConnectionFlags {
    let value = |long| flag_values(words, long).pop();
    ConnectionFlags {
        namespace: value("--namespace"),
        kubeconfig: value("--kubeconfig").map(Into::into),
        context: value("--context"),
        cluster: value("--cluster"),
        user: value("--user"),
        as_user: value("--as"),
        as_groups: flag_values(words, "--as-group"),
    }
}

/// The names of a resource's objects, as far as they can be had in time.
fn complete_names(resource: ApiResource) -> Vec<String> {
    // clap's completers are not async, and are called before a verb has its runtime.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    runtime.block_on(async {
        let listed = timeout(PATIENCE, list_names(resource)).await;
        listed.ok().flatten().unwrap_or_default()
    })
}

async fn list_names(resource: ApiResource) -> Option<Vec<String>> {
    let words: Vec<_> = std::env::args().collect();
    let connection = connection_from_words(&words);
    let (reader, namespace) = connection.connect_reader().await.ok()?;
    let namespace = resource.is_namespaced().then_some(namespace.as_str());
    reader.list_first_names(resource, namespace).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_told_from_its_flag() {
        for (word, flag) in [
            ("--context=st", "--context="),
            ("-n=", "-n="),
            ("--context", ""),
            ("app=web", ""),
        ] {
            assert_eq!(flag_before_value(OsStr::new(word)), flag, "{word}");
        }
    }

    #[test]
    fn a_kind_may_be_a_word_of_its_own() {
        for (words, kind) in [
            ("leadsman explain deploy lo", Some("deployments")),
            ("leadsman explain lo", None),
            ("leadsman explain pod game lo", None),
        ] {
            let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
            let found = kind_before(&words, "lo").map(|resource| resource.plural);
            assert_eq!(found, kind, "{words:?}");
        }
    }

    #[test]
    fn candidates_are_of_the_cluster_and_the_user_that_the_words_name() {
        let words = "kubectl_complete-leadsman explain -n old -nnew --context prod --cluster=b --user u \
            --as jane --as-group=a --as-group b --kubeconfig=/k pod/";
        let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        let found = connection_from_words(&words);
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let names = [
            &found.namespace,
            &found.context,
            &found.cluster,
            &found.user,
        ];
        assert_eq!(names.map(text), ["new", "prod", "b", "u"]);
        assert_eq!(text(&found.as_user), "jane");
        assert_eq!(found.as_groups, ["a", "b"]);
        assert_eq!(found.kubeconfig, Some("/k".into()));
        assert_eq!(connection_from_words(&[]).namespace, None);
    }
}
