//! Parse, wire, run: nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    fencedlock::cli::run(std::env::args_os())
}
