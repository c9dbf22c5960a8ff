//! The operation ledger with a payment provider of three kinds, and a worker that dies at every step.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::{Db, activate, claim, said, text};
use fencedlock::{
    api::GuardMode,
    boundary::{
        Backend,
        postgres::{Access, Postgres, trigger},
    },
    ledger::{
        Place, Roles,
        client::{Attempt, Begun, Effect, Key, Ledger, LedgerError, Outcome, Performed, WorkItem},
        read::{Reader, Which},
    },
};
use serde_json::json;
use tokio_postgres::Client;

/// What a receiver of payments does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It drops a key that it knows, and repeats its answer.
    Keys,
    /// It takes every request for a new one.
    NoKeys,
    /// The same, and its first answer is lost after the charge was made.
    LosesAnswers,
}

/// A payment provider: what it charged, by work item.
#[derive(Debug)]
struct Provider {
    kind: Kind,
    charges: Mutex<Vec<(String, Option<String>)>>,
}

impl Provider {
    fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { kind, charges: Mutex::default() })
    }

    fn charge(&self, attempt: &Attempt) -> Outcome {
        let mut charges = self.charges.lock().unwrap();
        let known = charges.iter().any(|(_, key)| key.is_some() && *key == attempt.key);
        if self.kind != Kind::Keys || !known {
            charges.push((attempt.work_item.clone(), attempt.key.clone()));
        }
        if self.kind == Kind::LosesAnswers && charges.len() == 1 {
            return Outcome::Unknown("no answer within 30 s".into());
        }
        Outcome::Confirmed(format!("charged {}", attempt.work_item))
    }

    /// How many charges there are for a work item: what a person sees in the provider's own pages.
    fn charged(&self, item: &str) -> usize {
        self.charges.lock().unwrap().iter().filter(|(of, _)| of == item).count()
    }

    /// All that were charged more than once.
    fn duplicates(&self) -> Vec<String> {
        let mut count = BTreeMap::<String, u32>::new();
        for (item, _) in self.charges.lock().unwrap().iter() {
            *count.entry(item.clone()).or_default() += 1;
        }
        count.into_iter().filter(|(_, charges)| *charges > 1).map(|(item, _)| item).collect()
    }
}

struct Books {
    db: Db,
    boundary: Postgres,
    settler: String,
}

fn place() -> Place {
    Place::new("public", "charges", "team", "writer").unwrap()
}

impl Books {
    /// A ledger behind the guard of lock `team/writer`, whose owner is `a` at epoch 1.
    async fn open() -> Self {
        let books = Self::unguarded().await;
        assert!(matches!(activate(&books.boundary, 1, "a").await, fencedlock::boundary::Activation::Activated));
        books
    }

    async fn unguarded() -> Self {
        let db = Db::new().await;
        let settler = format!("people_{}", db.name);
        let roles = Roles {
            writers: std::slice::from_ref(&db.writer),
            settlers: std::slice::from_ref(&settler),
            readers: std::slice::from_ref(&db.operator),
        };
        let script = place().script(&roles);
        let owner = &db.owner;
        db.admin
            .batch_execute(&format!(
                "create role {settler} login password '{settler}'; grant create on schema public to {owner}; set role {owner}"
            ))
            .await
            .unwrap();
        db.admin.batch_execute(&script).await.unwrap();
        db.admin.batch_execute(&script).await.unwrap();
        db.admin.batch_execute("reset role").await.unwrap();
        let mut spec = db.spec();
        spec["tables"] = json!([{"schema": "public", "name": "t"}, {"schema": "public", "name": "charges"}]);
        let boundary = db.declared(spec, GuardMode::Enforce, 1);
        Self { db, boundary, settler }
    }

    async fn worker(&self, epoch: u64, holder: &str) -> Worker {
        Worker { client: self.db.session(&self.db.writer).await, ledger: Ledger::new(place(), claim(epoch, holder)) }
    }

    async fn reader(&self, role: &str) -> Reader {
        Reader::connect(&Access::Given { url: self.db.url(role), authorities: None }, place()).await.unwrap()
    }

    /// What the listing shows as sent more than once.
    async fn repeated(&self) -> Vec<String> {
        let (listed, _) = self.reader(&self.db.operator).await.operations(Which::Open).await.unwrap();
        let mut items: Vec<_> = listed.into_iter().filter(|operation| operation.repeated).map(|operation| operation.work_item).collect();
        items.dedup();
        items
    }
}

struct Worker {
    client: Client,
    ledger: Ledger,
}

/// Where a worker is when it is killed: before the step of this name.
const STEPS: [&str; 5] = ["begin", "sent", "call", "ended", "nothing"];

fn item(kind: Kind, name: &str) -> WorkItem<'_> {
    let key = (kind == Kind::Keys).then(|| Key { value: format!("charge-{name}"), ttl: Some(Duration::from_hours(24)) });
    WorkItem { name, key, request: None }
}

impl Worker {
    /// Charges, step by step, and dies before one of them: its connection breaks. Returns the call that it was about to make.
    async fn dies_before(mut self, step: &str, provider: &Provider, name: &str) -> Option<Attempt> {
        if step == "begin" {
            return None;
        }
        let Begun::Send(attempt) = self.ledger.begin(&mut self.client, &item(provider.kind, name)).await.unwrap() else {
            panic!("nobody sent {name} before")
        };
        if step == "sent" {
            return None;
        }
        self.ledger.sent(&mut self.client, &attempt).await.unwrap();
        if step == "call" {
            return Some(attempt);
        }
        let outcome = provider.charge(&attempt);
        if step != "ended" {
            self.ledger.ended(&mut self.client, &attempt, &outcome).await.unwrap();
        }
        None
    }

    async fn charges(&mut self, provider: &Provider, name: &str) -> Performed {
        let call = async |attempt: &Attempt| provider.charge(attempt);
        self.ledger.perform(&mut self.client, &item(provider.kind, name), call).await.unwrap()
    }
}

/// Killed at every step, with every kind of provider, and once more with the old worker's last call landing after the next one is done.
#[tokio::test]
async fn whoever_dies_wherever_no_duplicate_is_made_with_keys_and_each_is_listed_without() {
    let books = Books::open().await;
    let mut epoch = 1;
    let mut made = 0;
    for kind in [Kind::Keys, Kind::NoKeys, Kind::LosesAnswers] {
        for step in STEPS {
            for lands_late in [false, true] {
                let name = format!("{kind:?}-{step}-{lands_late}");
                let provider = Provider::new(kind);
                let old = books.worker(epoch, if epoch == 1 { "a" } else { "b" }).await;
                let underway = old.dies_before(step, &provider, &name).await;
                epoch += 1;
                activate(&books.boundary, epoch, "b").await;
                let mut new = books.worker(epoch, "b").await;
                let open = new.ledger.unsettled(&new.client).await.unwrap();
                let is_unknown = match step {
                    "call" | "ended" => true,
                    "nothing" => kind == Kind::LosesAnswers,
                    _ => false,
                };
                assert_eq!(open.iter().any(|attempt| attempt.work_item == name), is_unknown, "{name}: the new owner sees what is open");
                let first = new.charges(&provider, &name).await;
                match (is_unknown, kind) {
                    (true, Kind::NoKeys | Kind::LosesAnswers) => {
                        assert!(matches!(first, Performed::Unsettled(_)), "{name} was sent again without being settled: {first:?}");
                    }
                    (false, Kind::LosesAnswers) => assert!(matches!(first, Performed::Now(Outcome::Unknown(_))), "{name}: {first:?}"),
                    _ => assert_eq!(matches!(first, Performed::Before(_)), step == "nothing", "{name}: {first:?}"),
                }
                // It asks the provider about whatever is not known, believes it, and goes on until nothing is.
                while let Some(attempt) = new.ledger.unsettled(&new.client).await.unwrap().first() {
                    let effect = if provider.charged(&name) == 0 { Effect::Absent } else { Effect::Happened };
                    new.ledger.reconciled(&mut new.client, attempt, effect, "asked the provider").await.unwrap();
                    let then = new.charges(&provider, &name).await;
                    assert_eq!(matches!(then, Performed::Before(_)), effect == Effect::Happened, "{name}: {then:?}");
                }
                // The old worker's packet was on its way all the time.
                if let Some(attempt) = underway.filter(|_| lands_late) {
                    provider.charge(&attempt);
                }
                assert!(provider.charged(&name) >= 1, "{name} was done");
                let (duplicates, listed) = (provider.duplicates(), books.repeated().await);
                assert!(kind != Kind::Keys || duplicates.is_empty(), "{name}: {duplicates:?}");
                made += duplicates.len();
                assert!(duplicates.iter().all(|item| listed.contains(item)), "{name}: {duplicates:?} are not all in {listed:?}");
                let done = new.charges(&provider, &name).await;
                assert!(matches!(done, Performed::Before(_)), "{name}: {done:?}");
            }
        }
    }
    assert!(made >= 2, "without keys a late call makes duplicates, or this test shows nothing");
    assert_eq!(books.reader(&books.db.operator).await.counts(Duration::ZERO).await.unwrap().overdue, 0);
}

/// The old owner's steps are refused, and a work item that the new owner took over is not sent by the old one.
#[tokio::test]
async fn an_obsolete_owner_records_nothing_and_may_send_nothing() {
    let books = Books::open().await;
    let (provider, mut old) = (Provider::new(Kind::NoKeys), books.worker(1, "a").await);
    let Begun::Send(attempt) = old.ledger.begin(&mut old.client, &item(Kind::NoKeys, "invoice-1")).await.unwrap() else { panic!() };
    activate(&books.boundary, 2, "b").await;
    let refused = old.ledger.sent(&mut old.client, &attempt).await;
    assert!(matches!(refused, Err(LedgerError::NotOwner(_))), "{refused:?}");
    let refused = old.ledger.begin(&mut old.client, &item(Kind::NoKeys, "invoice-2")).await;
    assert!(matches!(refused, Err(LedgerError::NotOwner(_))), "{refused:?}");
    let mut nobody = Worker { client: books.db.session(&books.db.writer).await, ledger: Ledger::new(place(), "") };
    let refused = nobody.ledger.begin(&mut nobody.client, &item(Kind::NoKeys, "invoice-2")).await;
    assert!(matches!(refused, Err(LedgerError::NotOwner(_))), "{refused:?}");
    let mut new = books.worker(2, "b").await;
    assert!(matches!(new.charges(&provider, "invoice-1").await, Performed::Now(Outcome::Confirmed(_))));
    assert_eq!(provider.charged("invoice-1"), 1);
    assert_eq!(text(&books.db.admin, "select epoch || holder from charges").await, "2b");
    // Nor can a role of a worker remove anything, or say what is a person's to say; and a person's role cannot say it was another.
    let around = books.db.claiming(&claim(2, "b")).await;
    for sql in [
        "delete from charges",
        "insert into charges_settlements (work_item, attempt, effect, settled_by, why) values ('invoice-1', 1, 'absent', 'me', 'x')",
        "delete from charges_settlements",
        "select charges_settle('invoice-1', 1, 'absent', 'me', 'x')",
    ] {
        assert_eq!(said(&around, sql).await, "42501", "{sql}");
    }
    let people = books.db.session(&books.settler).await;
    for sql in
        ["update charges set state = 'unknown'", "insert into charges_settlements (role) values ('somebody')", "select charges_begin('x')"]
    {
        assert_eq!(said(&people, sql).await, "42501", "{sql}");
    }
    let at_another_level = "begin isolation level repeatable read; select charges_begin('invoice-3')";
    assert_eq!(said(&around, at_another_level).await, "25001");
}

/// The twin: without the guard the functions refuse to begin with, and with the guard taken away they stop.
#[tokio::test]
async fn a_ledger_without_a_guard_is_of_no_use_to_anybody() {
    let books = Books::unguarded().await;
    let mut worker = books.worker(1, "a").await;
    let refused = worker.ledger.begin(&mut worker.client, &item(Kind::Keys, "invoice-1")).await;
    assert!(matches!(&refused, Err(LedgerError::NotGuarded(why)) if why.contains("charges is not guarded")), "{refused:?}");
    activate(&books.boundary, 1, "a").await;
    assert!(worker.ledger.begin(&mut worker.client, &item(Kind::Keys, "invoice-1")).await.is_ok());
    let counts = books.reader(&books.db.operator).await.counts(Duration::ZERO).await.unwrap();
    assert!(counts.triggers.contains(&trigger("team", "db", "writer")), "{counts:?}");
    books.db.admin.batch_execute(&format!("alter table charges disable trigger {}", trigger("team", "db", "writer"))).await.unwrap();
    let refused = worker.ledger.begin(&mut worker.client, &item(Kind::Keys, "invoice-2")).await;
    assert!(matches!(refused, Err(LedgerError::NotGuarded(_))), "{refused:?}");
    assert!(
        !books.reader(&books.db.operator).await.counts(Duration::ZERO).await.unwrap().triggers.contains(&trigger("team", "db", "writer"))
    );
}

/// Two threads of one owner: one sends.
#[tokio::test]
async fn of_two_that_begin_the_same_work_item_one_sends_it() {
    let books = Books::open().await;
    let provider = Provider::new(Kind::NoKeys);
    for round in 0..20 {
        let name = format!("invoice-{round}");
        let (mut one, mut two) = (books.worker(1, "a").await, books.worker(1, "a").await);
        let item = item(Kind::NoKeys, &name);
        let call = async |attempt: &Attempt| provider.charge(attempt);
        let (first, second) =
            tokio::join!(one.ledger.perform(&mut one.client, &item, call), two.ledger.perform(&mut two.client, &item, call));
        let sent = |performed: &Result<Performed, LedgerError>| matches!(performed, Ok(Performed::Now(_)));
        assert_eq!([&first, &second].into_iter().filter(|one| sent(one)).count(), 1, "{first:?} {second:?}");
        assert_eq!(provider.charged(&name), 1);
    }
}

/// A key that the receiver has forgotten protects nothing: the operation is not repeated any more.
#[tokio::test]
async fn what_cannot_be_repeated_safely_waits_for_somebody() {
    let books = Books::open().await;
    let (provider, mut worker) = (Provider::new(Kind::Keys), books.worker(1, "a").await);
    let old = books.worker(1, "a").await;
    old.dies_before("ended", &provider, "invoice-1").await;
    books.db.admin.batch_execute("set fencedlock.claim = 'team/writer=1@a'").await.unwrap();
    books.db.admin.batch_execute("update charges set first_sent_at = first_sent_at - interval '25 hours'").await.unwrap();
    let Performed::Unsettled(attempt) = worker.charges(&provider, "invoice-1").await else {
        panic!("it was repeated under a forgotten key")
    };
    // A person finds out, and says it under the name of whoever that is.
    let people = books.reader(&books.settler).await;
    assert!(people.settle("invoice-2", 1, Effect::Absent, "payments-oncall", "no such charge").await.is_err());
    people.settle("invoice-1", attempt.number, Effect::Happened, "payments-oncall", "charge ch_7 is in the provider's list").await.unwrap();
    assert!(matches!(worker.charges(&provider, "invoice-1").await, Performed::Before(_)));
    let (all, _) = people.operations(Which::All).await.unwrap();
    let shown = (all[0].state.as_str(), all[0].effect.as_deref(), all[0].settled_by.clone(), all[0].why.as_deref());
    let by = format!("payments-oncall ({})", books.settler);
    assert_eq!(shown, ("reconciled", Some("happened"), Some(by), Some("charge ch_7 is in the provider's list")));
    // The last word counts, and the first one stays on record.
    people.settle("invoice-1", 1, Effect::Compensated, "payments-oncall", "refunded").await.unwrap();
    let same = worker.ledger.begin(&mut worker.client, &item(Kind::Keys, "invoice-1")).await;
    assert!(matches!(same, Err(LedgerError::NotNow(_))), "the provider would repeat its answer and charge nothing: {same:?}");
    let again = WorkItem { key: Some(Key { value: "charge-invoice-1-again".into(), ttl: None }), ..item(Kind::Keys, "invoice-1") };
    let call = async |attempt: &Attempt| provider.charge(attempt);
    let performed = worker.ledger.perform(&mut worker.client, &again, call).await.unwrap();
    assert!(matches!(performed, Performed::Now(Outcome::Confirmed(_))), "what was made good may be done again: {performed:?}");
    assert_eq!(text(&books.db.admin, "select string_agg(effect, ' ' order by id) from charges_settlements").await, "happened compensated");
    assert_eq!(books.repeated().await, ["invoice-1"], "the second attempt was not looked at");
    people.settle("invoice-1", 2, Effect::Happened, "payments-oncall", "one charge stands").await.unwrap();
    assert_eq!(books.repeated().await, ["invoice-1"], "the first one was looked at before the second was sent");
    people.settle("invoice-1", 1, Effect::Compensated, "payments-oncall", "still refunded").await.unwrap();
    assert_eq!(books.repeated().await, Vec::<String>::new());
    let (open, more) = people.operations(Which::Open).await.unwrap();
    assert!(open.is_empty() && !more, "{open:?}");
}

/// A late word of the worker is on record beside the one that contradicts it.
#[tokio::test]
async fn what_contradicts_a_settlement_is_listed() {
    let books = Books::open().await;
    let mut worker = books.worker(1, "a").await;
    let Begun::Send(attempt) = worker.ledger.begin(&mut worker.client, &item(Kind::NoKeys, "invoice-1")).await.unwrap() else { panic!() };
    worker.ledger.sent(&mut worker.client, &attempt).await.unwrap();
    let people = books.reader(&books.settler).await;
    people.settle("invoice-1", 1, Effect::Absent, "payments-oncall", "not in the list").await.unwrap();
    worker.ledger.ended(&mut worker.client, &attempt, &Outcome::Confirmed("charged".into())).await.unwrap();
    let (open, _) = people.operations(Which::Open).await.unwrap();
    assert!(open.len() == 1 && open[0].contradicted && open[0].answer.as_deref() == Some("charged"), "{open:?}");
    let next = worker.ledger.begin(&mut worker.client, &item(Kind::NoKeys, "invoice-1")).await.unwrap();
    assert!(matches!(next, Begun::Unsettled(_)), "nothing is sent until a person speaks again: {next:?}");
    people.settle("invoice-1", 1, Effect::Absent, "payments-oncall", "looked again").await.unwrap();
    assert!(people.operations(Which::Open).await.unwrap().0.is_empty(), "the last word counts");
    let again = worker.ledger.ended(&mut worker.client, &attempt, &Outcome::Unknown("?".into())).await;
    assert!(matches!(again, Err(LedgerError::NotNow(_))), "an outcome that is known is not forgotten: {again:?}");
    let asked = worker.ledger.reconciled(&mut worker.client, &attempt, Effect::Happened, "x").await;
    assert!(matches!(asked, Err(LedgerError::NotNow(_))), "{asked:?}");
}

/// The guard is proven on the ledger as on every table.
#[tokio::test]
async fn the_ledger_is_proven_with_the_tables_of_its_boundary() {
    let books = Books::open().await;
    let examined = crate::support::examine(&books.boundary).await;
    assert!(crate::support::is_proven(&examined), "{examined:?}");
    assert!(examined.bypasses.is_empty(), "{:?}", examined.bypasses);
    assert!(books.boundary.observe().await.unwrap().trusted);
}

/// A provider on a socket that charges by key, and whose first answer never comes.
struct Web {
    port: u16,
    charged: Arc<Mutex<Vec<String>>>,
    /// Told when a request has taken effect.
    effects: tokio::sync::mpsc::UnboundedReceiver<()>,
}

impl Web {
    async fn start() -> Self {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, charged) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
        let ((told, effects), all) = (tokio::sync::mpsc::unbounded_channel(), Arc::clone(&charged));
        tokio::spawn(async move {
            let mut unanswered = None;
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = String::new();
                while !request.ends_with('}') {
                    let mut part = [0; 1024];
                    let length = stream.read(&mut part).await.unwrap();
                    request.push_str(std::str::from_utf8(&part[..length]).unwrap());
                }
                let key = request
                    .lines()
                    .find_map(|line| line.to_ascii_lowercase().strip_prefix("idempotency-key: ").map(str::to_owned))
                    .unwrap();
                let is_new = !all.lock().unwrap().contains(&key);
                if is_new {
                    all.lock().unwrap().push(key);
                }
                told.send(()).unwrap();
                if unanswered.is_none() {
                    unanswered = Some(stream);
                    continue;
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\ncharged").await.unwrap();
            }
        });
        Self { port, charged, effects }
    }
}

/// The example in Python, killed after the charge was made and before the answer came; the next owner runs it again.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_python_is_killed_and_charges_once() {
    let books = Books::open().await;
    let mut web = Web::start().await;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let charge = |claim: &str| {
        let mut command = tokio::process::Command::new(crate::programs::python());
        command.arg(root.join("examples/ledger/charge.py")).args(["invoice-17", "4200"]);
        command.env("DATABASE_URL", books.db.url(&books.db.writer)).env("LEDGER", "charges");
        command.env("PROVIDER", format!("http://127.0.0.1:{}/", web.port));
        command.env("PGOPTIONS", format!("-c fencedlock.claim={claim}")).env_remove("http_proxy");
        command.kill_on_drop(true);
        command
    };
    let mut killed = charge(&claim(1, "a")).spawn().unwrap();
    let (second, third) = (charge(&claim(2, "b")), charge(&claim(2, "b")));
    let obsolete = charge(&claim(1, "a"));
    tokio::time::timeout(crate::support::LIMIT, web.effects.recv()).await.unwrap().unwrap();
    killed.kill().await.unwrap();
    activate(&books.boundary, 2, "b").await;
    let said = |output: std::process::Output| {
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };
    for (mut command, code, words) in
        [(obsolete, 3, "does not own the lock"), (second, 0, "invoice-17: confirmed: charged"), (third, 0, "was charged before: charged")]
    {
        let (ended, told) = said(command.output().await.unwrap());
        assert!(ended == code && told.contains(words), "{ended} {told}");
    }
    assert_eq!(*web.charged.lock().unwrap(), ["charge-invoice-17"]);
    assert_eq!(text(&books.db.admin, "select state || ' ' || sends || ' ' || epoch from charges").await, "confirmed 2 2");
}

/// What is found out about an early attempt may come late: nothing is sent again then.
#[tokio::test]
async fn every_attempt_counts_and_a_late_confirmation_is_kept() {
    let books = Books::open().await;
    let mut worker = books.worker(1, "a").await;
    let item = item(Kind::NoKeys, "invoice-1");
    let begin = async |worker: &mut Worker| worker.ledger.begin(&mut worker.client, &item).await.unwrap();
    let Begun::Send(first) = begin(&mut worker).await else { panic!() };
    worker.ledger.sent(&mut worker.client, &first).await.unwrap();
    worker.ledger.reconciled(&mut worker.client, &first, Effect::Absent, "not in the list").await.unwrap();
    let Begun::Send(second) = begin(&mut worker).await else { panic!() };
    worker.ledger.sent(&mut worker.client, &second).await.unwrap();
    worker.ledger.ended(&mut worker.client, &second, &Outcome::Failed("402".into())).await.unwrap();
    // The slow thread that sent the first one hears of it at last.
    worker.ledger.ended(&mut worker.client, &first, &Outcome::Confirmed("charged".into())).await.unwrap();
    assert_eq!(begin(&mut worker).await, Begun::Done(Some("charged".into())));
    // And the same when it is a person who finds out.
    books.reader(&books.settler).await.settle("invoice-1", 1, Effect::Absent, "oncall", "it was another's").await.unwrap();
    assert!(matches!(begin(&mut worker).await, Begun::Send(attempt) if attempt.number == 3));
    books.reader(&books.settler).await.settle("invoice-1", 1, Effect::Happened, "oncall", "it was not").await.unwrap();
    assert_eq!(begin(&mut worker).await, Begun::Done(Some("charged".into())));
}

/// A repeat does not make an operation young again, a refusal of the repeat says nothing about the first packet, and what is said to be sent is on
/// disk whatever the session thinks of that.
#[tokio::test]
async fn a_repeat_hides_nothing() {
    let books = Books::open().await;
    let mut worker = books.worker(1, "a").await;
    worker.client.batch_execute("set synchronous_commit = off").await.unwrap();
    let item = item(Kind::Keys, "invoice-1");
    let Begun::Send(attempt) = worker.ledger.begin(&mut worker.client, &item).await.unwrap() else { panic!() };
    // Another thread of this owner that comes with another key does not change the one that is about to be sent.
    let other = WorkItem { key: Some(Key { value: "other".into(), ttl: None }), ..item.clone() };
    assert_eq!(worker.ledger.begin(&mut worker.client, &other).await.unwrap(), Begun::Send(attempt.clone()));
    worker.ledger.sent(&mut worker.client, &attempt).await.unwrap();
    books.db.admin.batch_execute("set fencedlock.claim = 'team/writer=1@a'").await.unwrap();
    books.db.admin.batch_execute("update charges set first_sent_at = first_sent_at - interval '1 hour'").await.unwrap();
    worker.ledger.resent(&mut worker.client, &attempt).await.unwrap();
    let counts = books.reader(&books.db.operator).await.counts(Duration::from_mins(15)).await.unwrap();
    assert_eq!((counts.overdue, counts.example.as_deref()), (1, Some("invoice-1")));
    worker.ledger.ended(&mut worker.client, &attempt, &Outcome::Failed("402".into())).await.unwrap();
    assert_eq!(text(&books.db.admin, "select state || ' ' || answer from charges").await, "unknown 402");
    let durable =
        "begin; set local fencedlock.claim = 'team/writer=1@a'; select charges_owner('x'); select current_setting('synchronous_commit')";
    let rows = worker.client.simple_query(durable).await.unwrap();
    let last = rows.iter().rev().find_map(|row| if let tokio_postgres::SimpleQueryMessage::Row(row) = row { row.get(0) } else { None });
    assert_eq!(last, Some("on"));
}
