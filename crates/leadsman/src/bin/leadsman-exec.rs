//! The program that the agent starts for a command with `--direct-exec`. Its work is in the crate `leadsman-direct`.

fn main() -> std::process::ExitCode {
    leadsman_direct::enter_and_execute()
}
