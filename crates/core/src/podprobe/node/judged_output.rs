//! The meaning of a run's output where the entry says what it has to be. The whole output is judged, although the status
//! has only a part of it.

use std::sync::Arc;

use leadsman_api::marker as wire;

use crate::cluster::{FieldErrors, Invalid};
use crate::podprobe::output::{ExpectedOutput, OutputValues};
use crate::podprobe::probe::{CannotProbe, Outcome, State};

/// Compiled expressions that are kept, at most: the others are compiled for each run.
const KEPT: usize = 64;

/// The result of a run, and what its output means.
#[derive(Clone, Debug)]
pub(super) struct JudgedRun {
    /// The result; output that does not match is a failure.
    pub(super) result: Result<Outcome, CannotProbe>,
    /// The values in the output. None if nothing is expected of it, and after a failure.
    pub(super) values: Option<Arc<OutputValues>>,
    /// The state that a failure establishes.
    pub(super) failure: State,
}

impl From<Result<Outcome, CannotProbe>> for JudgedRun {
    fn from(result: Result<Outcome, CannotProbe>) -> Self {
        Self {
            result,
            values: None,
            failure: State::Failed,
        }
    }
}

/// Compiled expressions, the last used first. Most probes of a node are those of a few markers.
#[derive(Debug, Default)]
pub(super) struct CompiledOutputs(Vec<(Arc<wire::ExpectedOutput>, Arc<ExpectedOutput>)>);

impl CompiledOutputs {
    /// Judges the result of a run.
    pub(super) fn judge_run(
        &mut self,
        expected: Option<&Arc<wire::ExpectedOutput>>,
        result: Result<Outcome, CannotProbe>,
    ) -> JudgedRun {
        let (Some(expected), Ok(Outcome::Succeeded(output))) = (expected, &result) else {
            return result.into();
        };
        let compiled = match self.find_or_compile(expected) {
            Ok(compiled) => compiled,
            Err(error) => return Err(CannotProbe::Local(error.to_string())).into(),
        };
        match compiled.judge(output) {
            Ok(values) => JudgedRun {
                values: Some(Arc::new(values)),
                ..result.into()
            },
            Err(mismatch) => JudgedRun {
                failure: mismatch.state,
                ..Ok(Outcome::Failed(mismatch.message)).into()
            },
        }
    }

    fn find_or_compile(
        &mut self,
        expected: &Arc<wire::ExpectedOutput>,
    ) -> Result<Arc<ExpectedOutput>, Invalid> {
        let place = self.0.iter().position(|(known, _)| known == expected);
        let one = if let Some(place) = place {
            self.0.remove(place)
        } else {
            let mut errors = Vec::new();
            let mut report = FieldErrors::new(&mut errors, "output");
            let compiled = ExpectedOutput::read(expected, &mut report);
            if let Some(error) = errors.pop() {
                return Err(error);
            }
            let compiled = compiled.expect("what is not read has an error");
            self.0.truncate(KEPT - 1);
            (expected.clone(), Arc::new(compiled))
        };
        self.0.insert(0, one.clone());
        Ok(one.1)
    }
}
