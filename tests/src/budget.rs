//! Budgets: what leadsman may ask of the API server while something happens, as a table.
//!
//! Counted is what the audit log says of leadsman's accounts, reads and failed requests included. A request that no
//! row lists is one too many.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, ensure};
use leadsman_testkit::audit::Request;
use leadsman_testkit::leadsman::{AGENT, MANAGER};

/// What the users of all of leadsman's accounts begin with.
const OURS: &str = "system:serviceaccount:leadsman-system:";
/// The leader renews its Lease so often: a third of its duration.
const RENEWAL: Duration = Duration::from_secs(5);
/// Of requests that are too many, so many are shown.
const SHOWN: usize = 12;

/// How many requests of a kind may be made.
#[derive(Clone, Debug)]
pub struct Row {
    user: &'static str,
    what: &'static str,
    times: RangeInclusive<usize>,
    each: Each,
}

/// How many of them for one object.
#[derive(Clone, Copy, Debug)]
enum Each {
    Any,
    Once,
    Every(Duration),
}

/// A number of requests: this one, or one of these.
pub struct Times(RangeInclusive<usize>);

impl From<usize> for Times {
    fn from(exactly: usize) -> Self {
        Self(exactly..=exactly)
    }
}

impl From<RangeInclusive<usize>> for Times {
    fn from(range: RangeInclusive<usize>) -> Self {
        Self(range)
    }
}

/// So many requests of the manager. `what` is `VERB RESOURCE` or `VERB RESOURCE/SUBRESOURCE`; with `, continued` for
/// the second and later pages of a list; and with the status behind it for requests that failed:
/// `update nodepodprobes 409`.
pub fn manager(what: &'static str, times: impl Into<Times>) -> Row {
    Row::new(MANAGER, what, times.into())
}

/// So many requests of the agents.
pub fn agent(what: &'static str, times: impl Into<Times>) -> Row {
    Row::new(AGENT, what, times.into())
}

/// What a manager's start reads where there are so many pods and nodes: each kind once, in pages no smaller than
/// these, then followed by one watch; and its Lease, but for taking and renewing that: see [`lease`].
pub fn manager_starts(pods: usize, nodes: usize) -> Vec<Row> {
    // Whether a manager with the serverless gate left one behind.
    let leftover = manager("get mutatingwebhookconfigurations 404", 1);
    [manager_reads(pods, nodes), vec![leftover]].concat()
}

/// The same of a manager that serves webhooks, without what it reads and writes for them.
pub fn manager_reads(pods: usize, nodes: usize) -> Vec<Row> {
    let more = |objects: usize, page: usize| 0..=objects.saturating_sub(1) / page;
    vec![
        manager("list pods", 1),
        manager("list pods, continued", more(pods, 150)),
        manager("list nodes", 1),
        manager("list nodes, continued", more(nodes, 100)),
        manager("list podprobemarkers", 1),
        manager("list nodepodprobes", 1),
        manager("list nodepodprobes, continued", more(nodes, 25)),
        manager("watch pods", 1),
        manager("watch nodes", 1),
        manager("watch podprobemarkers", 1),
        manager("watch nodepodprobes", 1),
        manager("list leases", 1),
        manager("watch leases", 1),
        // Whether OpenKruise is installed.
        manager("get clusterroles 404", 1),
        manager("list customresourcedefinitions", 2),
        manager("watch customresourcedefinitions", 2),
    ]
}

/// What a manager that serves webhooks reads at its start beside that, its certificate and its configuration, and what it
/// reads for sets: each kind once, then followed by one watch.
pub fn sidecar_set_reads() -> Vec<Row> {
    vec![
        manager("list secrets", 1),
        manager("watch secrets", 1),
        manager("list mutatingwebhookconfigurations", 1),
        manager("watch mutatingwebhookconfigurations", 1),
        manager("list validatingwebhookconfigurations", 1),
        manager("watch validatingwebhookconfigurations", 1),
        // The one that owns the latter.
        manager("get clusterroles", 1),
        manager("list sidecarsets", 1),
        manager("watch sidecarsets", 1),
        manager("list controllerrevisions", 1),
        manager("watch controllerrevisions", 1),
        manager("list namespaces", 1),
        manager("watch namespaces", 1),
        // The whitelist.
        manager("list configmaps", 1),
        manager("watch configmaps", 1),
    ]
}

/// What a manager that acts on jobs reads at its start beside that: each kind once, and `BroadcastJob`s once more for the
/// schedules of which they may be runs; then followed by one watch.
pub fn job_reads() -> Vec<Row> {
    vec![
        manager("list advancedcronjobs", 1),
        manager("watch advancedcronjobs", 1),
        manager("list jobs", 1),
        manager("watch jobs", 1),
        manager("list broadcastjobs", 2),
        manager("watch broadcastjobs", 2),
    ]
}

/// What a manager that acts on sets of pods reads at its start beside that, and beside the revisions that [`sidecar_set_reads`]
/// names too: each kind once, then followed by one watch.
pub fn clone_set_reads() -> Vec<Row> {
    vec![
        manager("list clonesets", 1),
        manager("watch clonesets", 1),
        manager("list persistentvolumeclaims", 1),
        manager("watch persistentvolumeclaims", 1),
    ]
}

/// The same, with one more of each of these.
pub fn and_again(mut rows: Vec<Row>, what: &[&str]) -> Vec<Row> {
    for row in rows.iter_mut().filter(|row| what.contains(&row.what)) {
        row.times = row.times.start() + 1..=row.times.end() + 1;
    }
    rows
}

/// What an agent's start reads.
pub fn agent_starts() -> Vec<Row> {
    vec![
        agent("list nodepodprobes", 1),
        agent("watch nodepodprobes", 1),
    ]
}

/// Taking the Lease over and renewing it, which goes on all the time.
pub fn lease() -> Row {
    manager("update leases", 0..=usize::MAX).each_every(RENEWAL)
}

impl Row {
    fn new(user: &'static str, what: &'static str, Times(times): Times) -> Self {
        Self {
            user,
            what,
            times,
            each: Each::Any,
        }
    }

    /// At most one for each object.
    #[must_use]
    pub fn once_each(mut self) -> Self {
        self.each = Each::Once;
        self
    }

    /// At most one in this time for each object, and one more.
    #[must_use]
    pub fn each_every(mut self, pause: Duration) -> Self {
        self.each = Each::Every(pause);
        self
    }

    fn most_each(&self, elapsed: Duration) -> usize {
        match self.each {
            Each::Any => usize::MAX,
            Each::Once => 1,
            Each::Every(pause) => {
                let pauses = elapsed.as_millis() / pause.as_millis().max(1);
                usize::try_from(pauses)
                    .unwrap_or(usize::MAX)
                    .saturating_add(1)
            }
        }
    }

    /// What of these requests is not as the row says.
    fn faults(&self, found: &[&Request], elapsed: Duration) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.times.contains(&found.len()) {
            let (count, shown) = (found.len(), shown(found));
            faults.push(format!("{self}: {count} of them: {shown}"));
        }
        let most = self.most_each(elapsed);
        let mut objects: BTreeMap<_, usize> = BTreeMap::new();
        for request in found {
            let object = (request.namespace.as_str(), request.name.as_str());
            *objects.entry(object).or_default() += 1;
        }
        let repeated = objects.into_iter().filter(|(_, count)| *count > most);
        faults.extend(repeated.take(SHOWN).map(|((namespace, name), count)| {
            format!("{self}: {namespace}/{name} {count} times, {most} at most")
        }));
        faults
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.times.start(), self.times.end());
        write!(f, "{} {}", self.user.replace(OURS, ""), self.what)?;
        match last {
            &usize::MAX => write!(f, ", {first} at least"),
            last if first == last => write!(f, ", {first} allowed"),
            last => write!(f, ", {first} to {last} allowed"),
        }
    }
}

/// Holds requests, made within `elapsed`, to a budget.
///
/// # Errors
/// With every row that is not kept, and all that is in none.
pub fn keep(requests: &[Request], elapsed: Duration, rows: &[Row]) -> Result<()> {
    let mut spent: BTreeMap<(&str, String), Vec<&Request>> = BTreeMap::new();
    for request in requests.iter().filter(|r| r.user.starts_with(OURS)) {
        let kind = (request.user.as_str(), what(request));
        spent.entry(kind).or_default().push(request);
    }
    let mut faults = Vec::new();
    for row in rows {
        let kind = (row.user, row.what.to_owned());
        let found = spent.remove(&kind).unwrap_or_default();
        faults.extend(row.faults(&found, elapsed));
    }
    let unlisted = spent.into_iter();
    let unlisted = unlisted.filter(|(_, found)| !goes_on(found, requests));
    faults.extend(unlisted.map(|((user, what), found)| {
        let user = user.replace(OURS, "");
        format!(
            "{user} {what}, in no row: {} of them: {}",
            found.len(),
            shown(&found)
        )
    }));
    ensure!(faults.is_empty(), "not within its budget: {faults:#?}");
    Ok(())
}

/// Whether these are watches that go on: the API server ends each after some minutes, and the next one begins where it
/// ended, without a list.
fn goes_on(found: &[&Request], all: &[Request]) -> bool {
    // Each watch of a resource once.
    let mut selected: Vec<_> = found.iter().map(|watch| field_selector(watch)).collect();
    selected.sort_unstable();
    selected.dedup();
    let is_new = |watch: &Request| {
        let of_same = |one: &&Request| one.user == watch.user && one.resource == watch.resource;
        let mut lists = all.iter().filter(of_same);
        lists.any(|one| one.verb == "list")
    };
    selected.len() == found.len()
        && found
            .iter()
            .all(|request| request.verb == "watch" && request.code < 300 && !is_new(request))
}

fn field_selector(request: &Request) -> Option<&str> {
    let mut parameters = request.uri.split('&');
    parameters.find(|parameter| parameter.starts_with("fieldSelector="))
}

fn what(request: &Request) -> String {
    let continued = request.verb == "list" && request.uri.contains("continue=");
    let continued = if continued { ", continued" } else { "" };
    format!("{}{continued}", request.kind())
}

fn shown(requests: &[&Request]) -> String {
    let first: Vec<_> = requests
        .iter()
        .take(SHOWN)
        .map(|request| request.uri.as_str())
        .collect();
    let more = requests.len() - first.len();
    match more {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
