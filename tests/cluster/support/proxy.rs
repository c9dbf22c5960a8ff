//! A TCP proxy that can do what load balancers do to idle connections: drop them without a word to either side.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A running proxy; it ends when it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    /// Connections that were made in an earlier age are dead.
    age: Arc<watch::Sender<u64>>,
    /// New connections are closed at once.
    refuses: Arc<AtomicBool>,
    /// What clients send is kept.
    holds: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let age = Arc::new(watch::Sender::new(0));
        let ages = Arc::clone(&age);
        let refuses = Arc::new(AtomicBool::new(false));
        let refused = Arc::clone(&refuses);
        let holds = watch::Sender::new(false);
        let held = holds.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if refused.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(target).await else { continue };
                tokio::spawn(pipe(near, far, ages.subscribe(), held.clone()));
            }
        });
        Self { address, age, refuses, holds, accepting }
    }

    /// Whether there is a way to the other side. When it is taken away, what is connected dies without a word.
    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
        if refuses {
            self.drop_silently();
        }
    }

    /// Keeps what clients send, as a network that delivers late does, until it is told to deliver.
    pub fn hold(&self, holds: bool) {
        self.holds.send_replace(holds);
    }

    /// From now on nothing passes on the connections that there are, and nobody is told. New ones work.
    pub fn drop_silently(&self) {
        self.age.send_modify(|age| *age += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Copies both ways until an end closes. Once another age has begun the sockets stay open and nothing is copied any more.
async fn pipe(near: TcpStream, far: TcpStream, mut ages: watch::Receiver<u64>, mut held: watch::Receiver<bool>) {
    let born = *ages.borrow_and_update();
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    let alive = async {
        tokio::select! {
            () = copy(&mut near_in, &mut far_out, Some(&mut held)) => {}
            () = copy(&mut far_in, &mut near_out, None) => {}
        }
    };
    tokio::select! {
        // Asked first: what arrives in the moment in which nothing passes any more does not pass.
        biased;
        ended = ages.wait_for(|age| *age != born) => if ended.is_err() { return },
        () = alive => return,
    }
    // Held open until the proxy is gone.
    while ages.changed().await.is_ok() {}
}

async fn copy(from: &mut (impl AsyncReadExt + Unpin), to: &mut (impl AsyncWriteExt + Unpin), mut held: Option<&mut watch::Receiver<bool>>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if let Some(held) = &mut held
            && held.wait_for(|holds| !holds).await.is_err()
        {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
