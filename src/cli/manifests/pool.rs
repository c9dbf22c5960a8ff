//! One thread cuts, every core turns, one takes in order. What is under way is bounded.

use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::{
        Mutex,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

use super::Chunk;
use crate::cli::Failure;

/// How many chunks, and how much text, go to a core at once: enough that handing over costs nothing.
const CHUNKS: usize = 64;
const BYTES: usize = 256 * 1024;

/// Collects chunks into batches.
pub(super) struct Sender {
    batches: SyncSender<(u64, Vec<Chunk>)>,
    next: u64,
    batch: Vec<Chunk>,
    bytes: usize,
    sent: u64,
}

impl Sender {
    /// How many chunks were handed over.
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Fails when nothing was handed over since: what was to be written there has failed, and a shell does not tell.
    pub(super) fn must_have_grown(&self, since: u64, why: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.sent > since { Ok(()) } else { Err(Failure::Other(why())) }
    }

    /// Hands a chunk over; waits while the cores are behind.
    pub(super) fn send(&mut self, chunk: Chunk) {
        self.bytes += match &chunk.text {
            super::Text::Document(text) => text.len(),
            _ => 0,
        };
        self.batch.push(chunk);
        self.sent += 1;
        if self.batch.len() >= CHUNKS || self.bytes >= BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.batch.is_empty() {
            // Nobody listens any more only when a worker has panicked, which ends the scope.
            drop(self.batches.send((self.next, std::mem::take(&mut self.batch))));
            (self.next, self.bytes) = (self.next + 1, 0);
        }
    }
}

pub(super) fn run<T: Send>(
    cut: impl FnOnce(&mut Sender) -> Result<(), Failure> + Send,
    turn: impl Fn(Chunk) -> T + Sync,
    mut take: impl FnMut(T),
) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let (batches, taken) = sync_channel::<(u64, Vec<Chunk>)>(cores);
    let (turned, results) = sync_channel::<(u64, Vec<T>)>(cores);
    let taken = Mutex::new(taken);
    thread::scope(|scope| {
        let cutter = scope.spawn(move || {
            let mut sender = Sender { batches, next: 0, batch: Vec::new(), bytes: 0, sent: 0 };
            let outcome = cut(&mut sender);
            sender.flush();
            outcome
        });
        for _ in 0..cores {
            let (turned, taken, turn) = (turned.clone(), &taken, &turn);
            scope.spawn(move || {
                loop {
                    let batch = taken.lock().ok().and_then(|taken| taken.recv().ok());
                    let Some((number, chunks)) = batch else { return };
                    if turned.send((number, chunks.into_iter().map(turn).collect())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(turned);
        let (mut next, mut early) = (0, BTreeMap::new());
        for (number, batch) in results {
            early.insert(number, batch);
            while let Some(batch) = early.remove(&next) {
                batch.into_iter().for_each(&mut take);
                next += 1;
            }
        }
        cutter.join().unwrap_or_else(|_| Err(Failure::Other("reading the manifests failed: this is an error of fencedlock".into())))
    })
}
