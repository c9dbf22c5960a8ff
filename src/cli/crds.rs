//! `fencedlock crds`: the CustomResourceDefinitions, as the operator expects them.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use super::Failure;
use crate::api::crd;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Write one file per kind into this folder instead of printing them
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let other = |error: crd::CrdError| Failure::Other(error.to_string());
    for crd in crd::all().map_err(other)? {
        let text = crd::to_yaml(&crd).map_err(other)?;
        match &args.write {
            Some(folder) => {
                let path = folder.join(crd::file_name(&crd));
                std::fs::write(&path, text).map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
            }
            None => write!(io::stdout(), "---\n{text}")?,
        }
    }
    Ok(0)
}
