//! The flags of what runs in containers, whose values may come from the environment.

use clap::Command;

/// Asserts that each flag can also be set by the variable that is named after it.
pub(crate) fn assert_are_variables(command: &mut Command) {
    command.build();
    for flag in command.get_arguments() {
        let Some(long) = flag.get_long() else {
            continue;
        };
        if ["help", "version"].contains(&long) {
            continue;
        }
        let expected = format!("LEADSMAN_{}", long.replace('-', "_").to_uppercase());
        let env = flag.get_env().map(|env| env.to_string_lossy().into_owned());
        assert_eq!(env, Some(expected), "{} --{long}", command.get_name());
    }
}
