//! Programs that know nothing of fencing are fenced by `PGOPTIONS`: pgbench, psycopg. And a pooler between: claims belong into the
//! transaction.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::support::{Db, activate, claim, connect, said, text};
use fencedlock::{boundary::Activation, epoch::claim::pgoptions};

fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

/// Python with psycopg.
pub fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/clients/python/bin/python");
    assert!(python.exists(), "{} is not there: run hack/build-clients.sh (or `make test`, which does)", python.display());
    python
}

#[tokio::test]
async fn unmodified_programs_are_fenced_by_pgoptions() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "pod a\\b_1").await;
    let script = std::env::temp_dir().join(format!("{}-{}.sql", db.name, std::process::id()));
    std::fs::write(&script, "update t set v = v where id = 1;\n").unwrap();
    let python = python();
    let program =
        "import os, psycopg\nwith psycopg.connect(os.environ['URL']) as c: c.execute(\"update t set v = 'psycopg' where id = 2\")";
    let url = db.url(&db.writer);
    let tried = |claim: Option<String>| {
        let mut psql = Command::new("psql");
        psql.args(["-XAtq", &url, "-c", "update t set v = v where id = 1"]);
        let mut pgbench = Command::new("pgbench");
        pgbench.args(["--no-vacuum", "--transactions=3", "--protocol=prepared", "--file"]).arg(&script).arg(&url);
        let mut psycopg = Command::new(&python);
        psycopg.args(["-c", program]).env("URL", &url);
        [psql, pgbench, psycopg].map(|mut command| {
            if let Some(claim) = &claim {
                command.env("PGOPTIONS", pgoptions("", claim));
            }
            run(&mut command)
        })
    };
    for (ok, output) in tried(Some(claim(7, "pod a\\b_1"))) {
        assert!(ok, "{output}");
    }
    assert_eq!(text(&db.admin, "select v from t where id = 2").await, "psycopg");
    for (ok, output) in tried(None) {
        assert!(!ok && output.contains("carries no claim"), "{output}");
    }
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated);
    for (ok, output) in tried(Some(claim(7, "pod a\\b_1"))) {
        assert!(!ok && output.contains("does not own the lock"), "{output}");
    }
    std::fs::remove_file(&script).unwrap();
}

struct Pooler {
    child: Child,
    dir: PathBuf,
    port: u16,
}

impl Pooler {
    /// PgBouncer in transaction mode, with one server connection for everybody.
    fn start(db: &Db) -> Self {
        let dir = std::env::temp_dir().join(format!("fencedlock-pgbouncer-{}-{}", db.name, std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let users = dir.join("users.txt");
        std::fs::write(&users, format!("\"{0}\" \"{0}\"\n", db.writer)).unwrap();
        let settings = format!(
            "[databases]\n{name} = host=127.0.0.1 port={server} dbname={name}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             auth_type = plain\nauth_file = {users}\npool_mode = transaction\ndefault_pool_size = 1\nunix_socket_dir =\nlogfile = {log}\n\
             ignore_startup_parameters = options\n",
            name = db.name,
            server = db.port,
            users = users.display(),
            log = dir.join("log").display(),
        );
        std::fs::write(dir.join("pgbouncer.ini"), settings).unwrap();
        let is_root = run(Command::new("id").arg("-u")).1.trim() == "0";
        let mut command = if is_root {
            assert!(Command::new("chown").args(["-R", "postgres"]).arg(&dir).status().unwrap().success());
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "pgbouncer"]);
            command
        } else {
            Command::new("pgbouncer")
        };
        let child = command.arg(dir.join("pgbouncer.ini")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, dir, port }
    }

    async fn client(&self, db: &Db) -> tokio_postgres::Client {
        let url = format!("postgresql://{0}:{0}@127.0.0.1:{1}/{2}?sslmode=disable", db.writer, self.port, db.name);
        let deadline = std::time::Instant::now() + crate::support::LIMIT;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(std::time::Instant::now() < deadline, "pgbouncer does not start: see {}", self.dir.display());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        connect(&url).await
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Behind a pooler in transaction mode a claim that is set in the transaction is the transaction's; one that is set on the connection
/// goes to whoever gets it next, which is why the documentation forbids it.
#[tokio::test]
async fn behind_a_pooler_claims_belong_into_the_transaction() {
    let db = Db::new().await;
    let _boundary = db.fenced(7, "a").await;
    let pooler = Pooler::start(&db);
    let (first, second) = (pooler.client(&db).await, pooler.client(&db).await);
    let in_transaction = |epoch| format!("begin; set local fencedlock.claim = '{}'; update t set v = v; commit", claim(epoch, "a"));
    for _ in 0..3 {
        assert_eq!(said(&first, &in_transaction(7)).await, "ok");
        assert_eq!(said(&second, "update t set v = v").await, "FL001", "nothing is left on the connection");
        assert_eq!(said(&second, &in_transaction(6)).await, "FL002");
        second.batch_execute("rollback").await.unwrap();
    }
    // What must not be done, and what it does.
    assert_eq!(said(&first, &format!("set fencedlock.claim = '{}'", claim(7, "a"))).await, "ok");
    assert_eq!(said(&second, "update t set v = v").await, "ok", "the next client has another's claim");
}
