//! The harness: cases by name, run one after another or side by side, skipped ones counted with their reason.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use futures::future::BoxFuture;
use leadsman_testkit::node::is_in_vm;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

/// A case of a suite with the fixture `F`.
pub struct Case<F> {
    /// `module::name`.
    pub name: &'static str,
    /// Who may run at the same time.
    pub beside: Beside,
    /// Whether it also runs where the node is a virtual machine.
    pub in_vm: bool,
    /// The body.
    pub body: fn(Arc<F>) -> BoxFuture<'static, Result<()>>,
}

impl<F> Case<F> {
    /// Runs it also where the node is a virtual machine: it counts no seconds, and needs no socket or file of its node.
    #[must_use]
    pub fn in_vm(self) -> Self {
        Self {
            in_vm: true,
            ..self
        }
    }
}

/// The error of a case that cannot run here, with the reason: it counts as skipped.
#[derive(Debug)]
pub struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Skipped {}

/// What a case's end means to the harness.
fn completion(ended: Result<()>) -> Result<Completion, Failed> {
    match ended {
        Ok(()) => Ok(Completion::Completed),
        Err(error) => match error.downcast_ref::<Skipped>() {
            Some(Skipped(reason)) => Ok(Completion::ignored_with(reason)),
            None => Err(format!("{error:#}").into()),
        },
    }
}

/// Who may run at the same time as a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Those that share the fixture.
    Sharers,
    /// Nobody who shares the fixture: it stops processes that others rely on.
    Nobody,
    /// Everybody: it raises what it needs itself.
    Everybody,
}

/// Makes a [`Case`] of an `async fn(Arc<Fixture>) -> Result<()>`; `alone` before it keeps others away, `apart` says
/// that it has a world of its own.
#[macro_export]
macro_rules! case {
    (alone $module:ident :: $name:ident) => {
        $crate::case!(@ Nobody, $module, $name)
    };
    (apart $module:ident :: $name:ident) => {
        $crate::case!(@ Everybody, $module, $name)
    };
    ($module:ident :: $name:ident) => {
        $crate::case!(@ Sharers, $module, $name)
    };
    (@ $beside:ident, $module:ident, $name:ident) => {
        $crate::Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            beside: $crate::Beside::$beside,
            in_vm: false,
            body: |fixture| Box::pin($module::$name(fixture)),
        }
    };
}

/// Runs the cases that the command line asks for. The fixture is made only if one is to run, and ended at the end.
///
/// `skip` is the reason why none can run here, if so.
pub fn run<F, M, E>(mut cases: Vec<Case<F>>, skip: Option<&str>, make: M, end: E) -> ExitCode
where
    F: Send + Sync + 'static,
    M: AsyncFnOnce() -> Result<F>,
    E: AsyncFnOnce(F) -> Result<()>,
{
    let mut args = Arguments::from_args();
    cases.retain(|case| case.in_vm || !is_in_vm());
    // Cases wait for a cluster far more than they compute; a virtual machine computes slowly.
    let threads = if is_in_vm() { 2 } else { 6 };
    args.test_threads = args.test_threads.or(Some(threads));
    if let Some(reason) = skip {
        let trials = cases.iter().map(|case| {
            let reason = reason.to_owned();
            Trial::ignorable_test(case.name, move || Ok(Completion::ignored_with(reason)))
        });
        return libtest_mimic::run(&args, trials.collect()).exit_code();
    }
    let wanted = |name: &str| !args.is_filtered_out(&Trial::test(name, || Ok(())));
    if args.list || !cases.iter().any(|case| wanted(case.name)) {
        let trials = cases.iter().map(|case| Trial::test(case.name, || Ok(())));
        return libtest_mimic::run(&args, trials.collect()).exit_code();
    }
    let runtime = Arc::new(Runtime::new().expect("a runtime can be made"));
    let fixture = match runtime.block_on(make()) {
        Ok(fixture) => Arc::new(fixture),
        Err(error) => {
            eprintln!("the test bed could not be raised: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let room = Arc::new(RwLock::new(()));
    let trials = cases
        .into_iter()
        .map(|case| {
            let (runtime, fixture, room) = (
                Arc::clone(&runtime),
                Arc::clone(&fixture),
                Arc::clone(&room),
            );
            Trial::ignorable_test(case.name, move || {
                let ended = runtime
                    .block_on(async {
                        let (_shared, _alone) = match case.beside {
                            Beside::Sharers => (Some(room.read().await), None),
                            Beside::Nobody => (None, Some(room.write().await)),
                            Beside::Everybody => (None, None),
                        };
                        tokio::spawn((case.body)(fixture)).await
                    })
                    .map_err(|panic| panic.to_string())?;
                completion(ended)
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&args, trials);
    if let Ok(fixture) = Arc::try_unwrap(fixture).map_err(|_| ())
        && let Err(error) = runtime.block_on(end(fixture))
    {
        eprintln!("the test bed did not end well: {error:#}");
    }
    conclusion.exit_code()
}
