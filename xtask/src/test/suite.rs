//! Running one test program and adding up what it says.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result};

use super::lines::Line;
use crate::clock;

/// A test program about to run.
pub(super) struct Suite {
    pub(super) title: String,
    pub(super) command: Command,
    /// Its tests take seconds each, so each gets a line when it ends.
    pub(super) slow: bool,
    /// How many of its cases are left to `--all`.
    pub(super) left_out: usize,
}

/// What has come of all tests so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    passed: usize,
    failed: Vec<String>,
    /// Reason, and the tests it kept from running.
    skipped: BTreeMap<String, Vec<String>>,
    /// Cases that were left to `--all`, by their program.
    left_out: BTreeMap<String, usize>,
}

impl Suite {
    /// Runs it and prints its tests' output.
    pub(super) fn run(mut self, tally: &mut Tally) -> Result<()> {
        let started = clock::now();
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("running the tests of {}", self.title))?;
        let stdout = child.stdout.take().context("its stdout is a pipe")?;
        let mut seen = Seen {
            slow: self.slow,
            ..Seen::default()
        };
        for line in BufReader::new(stdout).split(b'\n') {
            seen.read_line(&String::from_utf8_lossy(&line?), &self.title);
        }
        transient("");
        let status = child.wait()?;
        if seen.announced > 0 || !status.success() {
            let seconds = started.elapsed().as_secs_f64();
            let verdict = if status.success() { "ok" } else { "FAILED" };
            println!(
                "{verdict} {}: {} passed, {} failed, {} skipped ({seconds:.1} s)",
                self.title,
                seen.passed,
                seen.failed.len(),
                seen.skipped.len()
            );
        }
        tally.add(&self.title, seen, status);
        tally.leave_out(&self.title, self.left_out);
        Ok(())
    }
}

/// The results that one test executable has printed so far.
#[derive(Debug, Default)]
struct Seen {
    slow: bool,
    announced: usize,
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<(String, String)>,
    /// Sums of passed, failed, skipped; several where cargo runs several programs.
    sums: Option<(usize, usize, usize)>,
}

impl Seen {
    fn read_line(&mut self, text: &str, title: &str) {
        match Line::of(text) {
            Line::Announced(count) => self.announced += count,
            Line::Passed(name) => {
                self.passed += 1;
                self.ended("ok", name, "", title);
            }
            Line::Failed(name) => {
                self.failed.push(name.to_owned());
                transient("");
                println!("  FAILED {title}: {name}");
            }
            Line::Skipped(name, reason) => {
                self.skipped.push((name.to_owned(), reason.to_owned()));
                self.ended("skipped", name, reason, title);
            }
            Line::Result(passed, failed, skipped) => {
                let (p, f, s) = self.sums.unwrap_or_default();
                self.sums = Some((p + passed, f + failed, s + skipped));
            }
            Line::Empty => {}
            Line::Other(text) => {
                transient("");
                println!("  {text}");
            }
        }
    }

    fn ended(&self, how: &str, name: &str, why: &str, title: &str) {
        let place = format!(
            "[{}/{}]",
            self.passed + self.failed.len() + self.skipped.len(),
            self.announced
        );
        if self.slow && how == "ok" {
            transient("");
            println!("  {how} {title} {place} {name} {why}");
        } else {
            transient(&format!("  {title} {place} {name}"));
        }
    }
}

/// A line that the next one replaces; nothing where nobody looks.
fn transient(text: &str) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let cut: String = text.chars().take(100).collect();
        let _ = write!(out, "\r\x1b[2K{cut}").and_then(|()| out.flush());
    }
}

impl Tally {
    /// Nothing was found to run.
    pub(super) fn is_empty(&self) -> bool {
        self.passed == 0 && self.failed.is_empty() && self.skipped.is_empty()
    }

    /// Something kept tests from running at all. It counts as one failure.
    pub(super) fn trouble(&mut self, words: String) {
        self.failed.push(words);
    }

    /// Counts cases that the gate does not run.
    pub(super) fn leave_out(&mut self, title: &str, cases: usize) {
        if cases > 0 {
            *self.left_out.entry(title.to_owned()).or_default() += cases;
        }
    }

    /// Adds what another lane has seen.
    pub(super) fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        for (reason, tests) in other.skipped {
            self.skipped.entry(reason).or_default().extend(tests);
        }
        for (title, cases) in other.left_out {
            self.leave_out(&title, cases);
        }
    }

    fn add(&mut self, title: &str, seen: Seen, status: ExitStatus) {
        // The sums count also what printed its own line over its outcome.
        let (passed, failed, _) = seen.sums.unwrap_or((seen.passed, seen.failed.len(), 0));
        self.passed += passed;
        let unnamed = failed.saturating_sub(seen.failed.len());
        self.failed.extend(
            seen.failed
                .into_iter()
                .map(|name| format!("{title}: {name}")),
        );
        if unnamed > 0 {
            self.failed.extend((0..unnamed).map(|_| {
                format!("{title}: a test whose outcome shares its line with other words")
            }));
        }
        for (name, reason) in seen.skipped {
            self.skipped
                .entry(reason)
                .or_default()
                .push(format!("{title}: {name}"));
        }
        if !status.success() && failed == 0 {
            self.trouble(format!(
                "{title}: the program ended with {status} and named no test"
            ));
        }
    }

    /// Prints what needs a reader's eye, and the closing line. For root nothing may be skipped.
    pub(super) fn close(mut self, root: bool) -> ExitCode {
        println!();
        if root {
            for (reason, tests) in std::mem::take(&mut self.skipped) {
                self.failed.extend(
                    tests
                        .into_iter()
                        .map(|test| format!("{test}: skipped, which root may not: {reason}")),
                );
            }
        }
        for failure in &self.failed {
            println!("FAILED {failure}");
        }
        for (reason, tests) in &self.skipped {
            println!("skipped {}: {reason}", tests.len());
        }
        if !self.left_out.is_empty() {
            let programs = self.left_out.iter();
            let programs: Vec<_> = programs
                .map(|(it, count)| format!("{it} {count}"))
                .collect();
            println!(
                "left out: {} cases ({}), and other versions. `cargo xtask test --all` runs them, `--list` says why",
                self.left_out.values().sum::<usize>(),
                programs.join(", ")
            );
        }
        let skipped: usize = self.skipped.values().map(Vec::len).sum();
        println!(
            "{} passed, {} failed, {skipped} skipped",
            self.passed,
            self.failed.len()
        );
        if self.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(script: &str) -> Tally {
        let mut tally = Tally::default();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Suite {
            title: "t".into(),
            command,
            slow: false,
            left_out: 0,
        }
        .run(&mut tally)
        .unwrap();
        tally
    }

    #[test]
    fn passes_failures_and_skips_add_up() {
        let all = tally(
            "echo 'running 3 tests'; echo 'test a ... ok'; echo 'test b ... FAILED'; echo 'test c ... ignored, needs root';
             echo 'test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1s'; exit 101",
        );
        assert_eq!((all.passed, all.failed.len()), (1, 1));
        assert_eq!(all.skipped["needs root"], ["t: c"]);
    }

    #[test]
    fn a_program_that_dies_is_a_failure_even_if_no_test_is_named() {
        let died = tally("echo 'running 2 tests'; echo 'test a ... ok'; kill -9 $$");
        assert_eq!((died.passed, died.failed.len()), (1, 1));
    }

    #[test]
    fn a_sum_is_believed_over_lines_that_were_garbled() {
        let garbled = tally(
            "echo 'running 1 test'; echo 'test a ... noise'; echo ok;
             echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s'",
        );
        assert_eq!((garbled.passed, garbled.failed.len()), (1, 0));
    }

    #[test]
    fn nothing_run_is_nothing() {
        assert!(tally("echo 'running 0 tests'").is_empty());
    }

    #[test]
    fn for_root_a_skipped_test_is_a_failure() {
        let skipped = || tally("echo 'running 1 test'; echo 'test c ... ignored, needs root'");
        let code = |code: ExitCode| format!("{code:?}");
        assert_eq!(code(skipped().close(false)), code(ExitCode::SUCCESS));
        assert_eq!(code(skipped().close(true)), code(ExitCode::FAILURE));
    }
}
