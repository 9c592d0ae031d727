//! `cargo xtask test`: the tests of the gate, in four stages, added up to one closing line. [`later`] has what is left out.
//!
//! | stage | what runs | needs |
//! |---|---|---|
//! | `pure` | unit tests, properties, executors against loopback listeners, doc tests | Rust, cc |
//! | `api` | black-box tests of the manager against a real API server, and the chart as Helm renders it | and Go, the first time minutes |
//! | `node` | black-box tests of both processes on a real kubelet and containerd | and root |
//! | `install` | the chart and the image on two real nodes: leadsman as pods | and root |
//!
//! Stage `api` runs beside the others: all of them wait most of the time.

mod earlier;
mod later;
mod lines;
mod other_versions;
mod suite;

use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;

use crate::bed;
use crate::cargo::{self, Executable};
use crate::root::{self, is_root};
use other_versions::OtherVersions;
use suite::{Suite, Tally};

/// The seeds of generated flows and of properties (CONTRIBUTING.md). The gate plays the same ones each time: it is to say
/// whether a change breaks something, and a run without them looks for what is not known yet.
const SEEDS: [&str; 2] = ["LEADSMAN_FLOW_SEED", "PROPTEST_RNG_SEED"];

/// Arguments of `test`.
#[derive(clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line, and none excludes another but --list"
)]
pub(crate) struct Arguments {
    /// `pure`, `api`, `node` or `install`; all of them when left out
    #[arg(value_name = "pure|api|node|install")]
    stage: Option<String>,
    /// Only tests whose name contains this
    filter: Option<String>,
    /// Run the tests that need a node through sudo; all is built as you
    #[arg(long)]
    sudo: bool,
    /// With `install`: build this commit too, and run the cases in which it and this one meet
    #[arg(long, value_name = "COMMIT")]
    earlier: Option<String>,
    #[command(flatten)]
    other_versions: OtherVersions,
    /// Also what the gate leaves out: long outages, all installations, and without a stage other versions and a release
    #[arg(long, conflicts_with = "list")]
    all: bool,
    /// Compile all that the tests need, and run none
    #[arg(long)]
    no_run: bool,
    /// Print what is left to --all, and why
    #[arg(long)]
    list: bool,
    /// Passed on to each test program
    #[arg(last = true)]
    more: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Pure,
    Api,
    Node,
    Install,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Pure, Self::Api, Self::Node, Self::Install];

    fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Api => "api",
            Self::Node => "node",
            Self::Install => "install",
        }
    }

    /// Test programs of their own `main` that raise a cluster; all others are pure.
    fn of(executable: &Executable) -> Self {
        let kind = executable.kind.as_str();
        match (executable.package.as_str(), kind, &*executable.target) {
            ("leadsman-tests", "test", "api" | "chart") => Self::Api,
            ("leadsman-tests", "test", "install") => Self::Install,
            // The test bed's own tests raise nodes too; the image's need root for a namespace.
            ("leadsman-image", "test", "scratch")
            | ("leadsman-tests" | "leadsman-testkit", "test", _) => Self::Node,
            _ => Self::Pure,
        }
    }

    fn needs_root(self) -> bool {
        matches!(self, Self::Node | Self::Install)
    }
}

/// The stages and the filter that were meant. A first word that is no stage is a filter over all.
fn meant(
    stage: Option<&str>,
    filter: Option<&str>,
) -> Result<(Vec<Stage>, Option<String>), String> {
    let Some(word) = stage else {
        return Ok((Stage::ALL.to_vec(), None));
    };
    match (
        Stage::ALL.into_iter().find(|stage| stage.name() == word),
        filter,
    ) {
        (Some(stage), filter) => Ok((vec![stage], filter.map(ToOwned::to_owned))),
        (None, None) => Ok((Stage::ALL.to_vec(), Some(word.to_owned()))),
        (None, Some(_)) => Err(format!(
            "{word:?} is no stage; there are pure, api, node and install"
        )),
    }
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if arguments.list {
        later::print();
        return ExitCode::SUCCESS;
    }
    let mut tally = Tally::default();
    match meant(arguments.stage.as_deref(), arguments.filter.as_deref()) {
        Ok((stages, filter)) => {
            let run = Run {
                is_gate: !arguments.all && filter.is_none(),
                is_compiled_only: arguments.no_run,
                filter,
                more: &arguments.more,
                sudo: arguments.sudo,
                earlier: arguments.earlier.as_deref(),
                other_versions: &arguments.other_versions,
            };
            if let Err(error) = run.stages(&stages, &mut tally) {
                tally.trouble(format!("{error:#}"));
            } else if run.is_compiled_only {
                eprintln!("test: all is compiled; `cargo xtask test` runs it");
                return ExitCode::SUCCESS;
            } else if tally.is_empty() {
                tally.trouble(format!(
                    "no test's name contains {:?}",
                    run.filter.unwrap_or_default()
                ));
            }
            if arguments.all && stages == Stage::ALL {
                run_again(arguments.sudo, &mut tally);
            }
        }
        Err(error) => tally.trouble(error),
    }
    tally.close(is_root() || arguments.sudo)
}

/// The further runs of `--all`, each with its own closing line; one that fails is a failure of the whole.
fn run_again(sudo: bool, tally: &mut Tally) {
    for again in later::AGAIN {
        let words = again.words.join(" ");
        println!("\ntest: cargo xtask {words}");
        let mut command = cargo::cargo();
        command.args(["xtask"]).args(again.words);
        if sudo && again.words[0] == "test" {
            command.arg("--sudo");
        }
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => {
                tally.trouble(format!("`cargo xtask {words}`: {status}"));
            }
            Err(error) => {
                tally.trouble(format!("`cargo xtask {words}`: {error}"));
            }
        }
    }
}

/// Which tests are meant, and how they are run.
struct Run<'a> {
    filter: Option<String>,
    /// Whether what [`later`] lists is left out.
    is_gate: bool,
    is_compiled_only: bool,
    more: &'a [String],
    sudo: bool,
    earlier: Option<&'a str>,
    other_versions: &'a OtherVersions,
}

impl Run<'_> {
    fn stages(&self, stages: &[Stage], tally: &mut Tally) -> Result<()> {
        if self.earlier.is_some() && !stages.contains(&Stage::Install) {
            anyhow::bail!("--earlier is for stage install");
        }
        self.other_versions.check(stages)?;
        let missing = missing(stages);
        if !missing.is_empty() {
            anyhow::bail!("{}", missing.join("; "));
        }
        eprintln!("test: building");
        let selection: &[&str] = match stages {
            [Stage::Api] => &["--test", "api", "--test", "chart"],
            [Stage::Install] => &["--test", "install"],
            [Stage::Node] if self.other_versions.vm => &["--test", "node"],
            _ => &["--bins", "--tests"],
        };
        let bed = cargo::program(&cargo::build(&["--bin", "leadsman-bed"])?, "leadsman-bed")?;
        let has_nodes = stages.iter().any(|stage| stage.needs_root()) && (self.sudo || is_root());
        let of_bed: &[&str] = if has_nodes { &[] } else { &["--control-plane"] };
        let built = if stages == [Stage::Pure] {
            cargo::build(selection)?
        } else {
            bed::prepare_beside(&bed, of_bed, || cargo::build(selection))?
        };
        let mut environment = if self.sudo && stages.iter().any(|stage| stage.needs_root()) {
            bed::prepare_as_user(&bed)?
        } else {
            Vec::new()
        };
        environment.extend(self.other_versions.environment(&bed)?);
        environment.push(("LEADSMAN_BED".to_owned(), bed.into_os_string()));
        if let Some(commit) = self.earlier {
            environment.extend(earlier::build(commit)?);
        }
        let unset = |seed: &&str| std::env::var_os(seed).is_none();
        for seed in SEEDS.iter().filter(|seed| self.is_gate && unset(seed)) {
            environment.push(((*seed).to_owned(), OsString::from("1")));
        }
        if stages != [Stage::Pure] {
            environment.extend(bed::build_product()?);
        }
        if self.is_compiled_only {
            return Ok(());
        }
        let (api, others): (Vec<Stage>, Vec<Stage>) = stages
            .iter()
            .copied()
            .partition(|stage| *stage == Stage::Api);
        let lane = |stages| self.lane(stages, &built, &environment);
        std::thread::scope(|scope| {
            let api = scope.spawn(|| lane(api));
            tally.merge(lane(others)?);
            let api = api
                .join()
                .map_err(|_| anyhow::anyhow!("a lane of suites panicked"))?;
            tally.merge(api?);
            Ok(())
        })
    }

    /// Runs the suites of some stages, one after the other.
    fn lane(
        &self,
        stages: Vec<Stage>,
        built: &[Executable],
        environment: &[(String, OsString)],
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        for stage in stages {
            eprintln!("test: {}", stage.name());
            let concerns = |it: &&Executable| {
                it.harness && Stage::of(it) == stage && self.other_versions.concern(it)
            };
            let mut harnesses: Vec<_> = built.iter().filter(concerns).collect();
            harnesses.sort_by_key(|it| (&it.package, &it.target));
            for executable in harnesses {
                self.suite(executable, stage, environment)?
                    .run(&mut tally)?;
            }
            if stage == Stage::Pure {
                self.doc_tests()?.run(&mut tally)?;
            }
        }
        Ok(tally)
    }

    /// One test program, started as cargo would: in its package's folder.
    fn suite(
        &self,
        executable: &Executable,
        stage: Stage,
        environment: &[(String, OsString)],
    ) -> Result<Suite> {
        let title = match (executable.kind.as_str(), stage) {
            ("test", _) => format!("{} {}", executable.package, executable.target),
            _ => executable.package.clone(),
        };
        let mut environment = environment.to_vec();
        environment.push((
            "CARGO_MANIFEST_DIR".to_owned(),
            executable.folder.clone().into(),
        ));
        let mut command = if self.sudo && stage.needs_root() {
            root::command(&executable.path, &[], &environment)?
        } else {
            let mut command = Command::new(&executable.path);
            command.envs(environment);
            command
        };
        let mut left_out = if self.is_gate && self.more.is_empty() {
            later::left_out(&executable.target, &executable.path)?
        } else {
            Vec::new()
        };
        let of_other_versions = self.other_versions.left_out(executable);
        left_out.extend(of_other_versions.map(str::to_owned));
        if !left_out.is_empty() {
            // A filter would have to be a whole name too.
            let exact = self.filter.is_none().then_some("--exact");
            let skips = left_out.iter().flat_map(|name| ["--skip", name]);
            command.args(exact).args(skips);
        }
        command
            .args(&self.filter)
            .args(self.more)
            .current_dir(&executable.folder);
        Ok(Suite {
            title,
            command,
            slow: stage != Stage::Pure,
            left_out: left_out.len(),
        })
    }

    /// Examples in doc comments, all crates in one go: only cargo knows how to build them.
    fn doc_tests(&self) -> Result<Suite> {
        let mut command = cargo::for_tests("test")?;
        command.args(["--workspace", "--doc", "--quiet", "--no-fail-fast", "--"]);
        // Quiet would shorten the tests' own lines too.
        command
            .args(["--format=pretty"])
            .args(&self.filter)
            .args(self.more);
        Ok(Suite {
            title: "doc tests".into(),
            command,
            slow: false,
            left_out: 0,
        })
    }
}

/// What the stages need and this machine lacks, a line each.
fn missing(stages: &[Stage]) -> Vec<String> {
    let runs = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        command
            .arg(argument)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let mut missing = Vec::new();
    if !runs("cc", "--version") {
        missing.push(
            "a C compiler is missing (`cc`; Debian: apt-get install gcc libc6-dev)".to_owned(),
        );
    }
    if !runs("make", "--version") {
        missing.push("make is missing (Debian: apt-get install make)".to_owned());
    }
    if stages.iter().any(|stage| *stage != Stage::Pure) && !runs("go", "version") {
        missing.push(
            "Go is missing: the cluster's programs are compiled with it; put 1.24 or later on PATH (https://go.dev/dl). \
             `cargo xtask test pure` needs none"
                .to_owned(),
        );
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_a_stage_or_a_filter() {
        let all = Stage::ALL.to_vec();
        for (words, expected) in [
            ((None, None), Ok((all.clone(), None))),
            ((Some("api"), None), Ok((vec![Stage::Api], None))),
            (
                (Some("node"), Some("exec")),
                Ok((vec![Stage::Node], Some("exec".to_owned()))),
            ),
            ((Some("exec"), None), Ok((all, Some("exec".to_owned())))),
            (
                (Some("nod"), Some("exec")),
                Err("\"nod\" is no stage; there are pure, api, node and install".to_owned()),
            ),
        ] {
            assert_eq!(meant(words.0, words.1), expected, "{words:?}");
        }
    }
}
