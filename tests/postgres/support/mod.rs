//! A real PostgreSQL server, and in it a database with roles for each test.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use fencedlock::{
    api::{GuardMode, PostgresBoundary},
    boundary::{
        Activation, Ask, Backend, Owner,
        postgres::{Access, Postgres, Which},
        proof::{Examination, conclude},
    },
    epoch::{Epoch, Holder},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// The longest wait for anything.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A running server. The launcher ends with our end of its standard input.
pub struct Server {
    pub port: u16,
    pub dir: PathBuf,
    launcher: Mutex<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Server {
    /// The server that tests share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Self::start("shared", &["max_connections=200", "max_prepared_transactions=4"]))
    }

    /// A server of one's own.
    pub fn start(name: &str, settings: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        // Beneath /tmp, because the server's user may not be allowed into the build directory.
        let dir = std::env::temp_dir().join(format!("fencedlock-postgres-{name}-{}", std::process::id()));
        let mut child = Command::new(root.join("hack/postgres/server.sh"))
            .arg(&dir)
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the launcher starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut server = Self { port: 0, dir, launcher: Mutex::new((child, stdin, stdout)) };
        server.port = server.line().strip_prefix("ready ").expect("the server is ready").parse().unwrap();
        server
    }

    fn line(&self) -> String {
        let mut line = String::new();
        self.launcher.lock().unwrap().2.read_line(&mut line).expect("the launcher answers");
        line.trim().to_owned()
    }

    /// A command of `hack/postgres/server.sh`; its answer.
    pub fn command(&self, command: &str) -> String {
        writeln!(self.launcher.lock().unwrap().1, "{command}").unwrap();
        let answer = self.line();
        assert_ne!(answer, "failed", "{command}");
        answer
    }

    pub fn url(&self, role: &str, database: &str) -> String {
        url(self.port, role, database)
    }
}

fn url(port: u16, role: &str, database: &str) -> String {
    format!("postgresql://{role}:{role}@127.0.0.1:{port}/{database}?sslmode=disable")
}

/// Connects, and drives the connection until it is dropped.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
    tokio::spawn(connection);
    client
}

/// The SQLSTATE of what a statement is answered with; `ok` when it is carried out.
pub async fn said(client: &Client, sql: &str) -> String {
    match client.simple_query(sql).await {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
    }
}

/// The first column of the first row.
pub async fn text(client: &Client, sql: &str) -> String {
    let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let row = rows.iter().find_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None });
    row.and_then(|row| row.get(0)).unwrap_or_default().to_owned()
}

/// Waits until a query says `wanted`.
pub async fn until(client: &Client, sql: &str, wanted: &str) {
    let began = Instant::now();
    loop {
        let now = text(client, sql).await;
        if now == wanted {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{sql}: {now}, and not {wanted}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A database of a test's own, with an operator's role that is no superuser, an owner of the tables and a writer.
pub struct Db {
    pub port: u16,
    pub name: String,
    /// A superuser in it.
    pub admin: Client,
    pub operator: String,
    pub owner: String,
    pub writer: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Db {
    pub async fn new() -> Self {
        Self::on(Server::shared()).await
    }

    /// A database on a server, with table `public.t (id int primary key, v text)` of two rows. The operator's role has exactly what
    /// docs/postgres.md lists.
    pub async fn on(server: &Server) -> Self {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let (name, operator, owner, writer) = (format!("db{n}"), format!("operator{n}"), format!("owner{n}"), format!("app{n}"));
        let root = connect(&server.url("postgres", "postgres")).await;
        for sql in [
            format!("create role {operator} login password '{operator}'"),
            format!("create role {owner}"),
            format!("create role {writer} login password '{writer}'"),
            format!("create database {name}"),
        ] {
            root.batch_execute(&sql).await.unwrap();
        }
        let admin = connect(&server.url("postgres", &name)).await;
        admin
            .batch_execute(&format!(
                "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b'); alter table t owner to {owner};
                 grant select, insert, update, delete, truncate on t to {writer};
                 grant {owner}, {writer}, pg_read_all_stats, pg_signal_backend to {operator};
                 grant create on database {name} to {operator};"
            ))
            .await
            .unwrap();
        Self { port: server.port, name, admin, operator, owner, writer }
    }

    pub fn url(&self, role: &str) -> String {
        url(self.port, role, &self.name)
    }

    /// A connection of a role whose name is its password.
    pub async fn session(&self, role: &str) -> Client {
        connect(&self.url(role)).await
    }

    /// A connection of the writer, with a claim for the whole of it.
    pub async fn claiming(&self, claim: &str) -> Client {
        let client = self.session(&self.writer).await;
        client.batch_execute(&format!("set fencedlock.claim = '{claim}'")).await.unwrap();
        client
    }

    pub fn spec(&self) -> Value {
        json!({"connection": {"secretKeyRef": {"name": "s", "key": "url"}}, "tables": [{"schema": "public", "name": "t"}],
               "writerRoles": [self.writer], "patience": "2s"})
    }

    /// The boundary `team/db` of lock `team/writer`.
    pub fn boundary(&self, mode: GuardMode) -> Postgres {
        self.declared(self.spec(), mode, 1)
    }

    pub fn declared(&self, spec: Value, mode: GuardMode, generation: i64) -> Postgres {
        self.called("db", "writer", spec, mode, generation)
    }

    pub fn called(&self, boundary: &str, lock: &str, spec: Value, mode: GuardMode, generation: i64) -> Postgres {
        let spec: PostgresBoundary = serde_json::from_value(spec).unwrap();
        let access = Access::Given { url: self.url(&self.operator), authorities: None };
        let which = Which { namespace: "team", boundary, lock, uid: "uid", generation };
        Postgres::new(access, which, spec, mode, Arc::default())
    }

    /// An enforcing boundary that is installed, with its fence at an owner.
    pub async fn fenced(&self, epoch: u64, holder: &str) -> Postgres {
        let boundary = self.boundary(GuardMode::Enforce);
        assert_eq!(activate(&boundary, epoch, holder).await, Activation::Activated);
        boundary
    }
}

/// The claim for lock `team/writer`.
pub fn claim(epoch: u64, holder: &str) -> String {
    format!("team/writer={epoch}@{holder}")
}

pub async fn activate(boundary: &Postgres, epoch: u64, holder: &str) -> Activation {
    let owner = Owner { epoch: Epoch::new(epoch).unwrap(), holder: Some(Holder::new(holder).unwrap()), pod_uid: None };
    boundary.activate(&owner).await.unwrap()
}

pub async fn examine(boundary: &Postgres) -> Examination {
    boundary.examine(&Ask::default()).await.unwrap()
}

/// Whether an examination is a complete proof by itself.
pub fn is_proven(examined: &Examination) -> bool {
    conclude(examined, None, Some(1), Timestamp::now()).1.is_some()
}

/// The first column of every row.
pub async fn texts(client: &Client, sql: &str) -> std::collections::BTreeSet<String> {
    let rows = client.simple_query(sql).await.unwrap();
    let row = |message: SimpleQueryMessage| if let SimpleQueryMessage::Row(row) = message { row.get(0).map(str::to_owned) } else { None };
    rows.into_iter().filter_map(row).collect()
}
