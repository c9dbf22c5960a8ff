//! The database that a command talks to. Its URL holds a password, so it comes from the environment.

use super::Failure;
use crate::boundary::postgres::Access;

/// The URL of a database.
#[derive(clap::Args)]
pub(super) struct Database {
    #[arg(long, env = "FENCEDLOCK_DATABASE_URL", hide_env_values = true, hide = true)]
    url: Option<String>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Database")
    }
}

impl Database {
    /// How it is reached. `what` says in an error which URL is meant.
    pub(super) fn access(&self, what: &str) -> Result<Access, Failure> {
        let url = self.url.clone().ok_or_else(|| {
            Failure::Other(format!("set FENCEDLOCK_DATABASE_URL to a URL of {what}; on the command line others could read it"))
        })?;
        Ok(Access::Given { url, authorities: None })
    }
}
