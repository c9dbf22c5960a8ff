//! `fencedlock completions`: a completion script for a shell.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Failure};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fencedlock", &mut script);
    io::Write::write_all(&mut io::stdout(), &script)?;
    Ok(0)
}
