//! A TCP proxy in front of a server, which delays, holds, loses or cuts what
//! passes through it, as a test tells it.

use std::collections::VecDeque;
use std::future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// What the proxy does with connections, new ones and those that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on.
    Forward,
    /// Passes every reply on this much later. Replies overlap: two that come
    /// together are late together.
    Delay(Duration),
    /// A path that stalls and heals: nothing passes, nothing is lost, all of
    /// it passes when the mode changes.
    Hold,
    /// A black hole: accepts and reads, forwards nothing, answers nothing.
    /// What it has read is lost, so such a connection is closed when the mode
    /// changes.
    Swallow,
    /// Passes requests on and only the first so many bytes of the next piece
    /// of reply, then closes the connection. With 0 the request is carried
    /// out and its answer lost.
    CutReplyAfter(usize),
    /// The same, but the connection is reset.
    ResetReplyAfter(usize),
    /// The same, but the connection stays open and nothing more is heard of it
    /// until the mode changes, when it is closed.
    SilentReplyAfter(usize),
    /// New connections are reset at once, open ones go on.
    RefuseNew,
    /// New and open connections are reset at once.
    Reset,
}

/// A running proxy. It ends, with its connections, when dropped.
pub struct Proxy {
    addr: SocketAddr,
    control: watch::Sender<Control>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a loopback port and forwards to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a loopback port");
        let addr = listener.local_addr().expect("its address");
        let control = watch::Sender::new(Control { mode: Mode::Forward, target, generation: 0, stranded: 0 });
        let counts = Arc::new(Counts::default());
        let task = tokio::spawn(accept(listener, control.subscribe(), Arc::clone(&counts)));
        Self { addr, control, counts, task }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://` and the address.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// From now on, also for what arrives on open connections.
    pub fn set_mode(&self, mode: Mode) {
        self.control.send_modify(|control| control.mode = mode);
    }

    /// New connections go to `target`; open ones stay, unless
    /// [`drop_connections`](Self::drop_connections) follows.
    pub fn switch_target(&self, target: SocketAddr) {
        self.control.send_modify(|control| control.target = target);
    }

    /// Resets the open connections once, whatever the mode.
    pub fn drop_connections(&self) {
        self.control.send_modify(|control| control.generation += 1);
    }

    /// The open connections go silent for good, whatever the mode, as after a
    /// network that has forgotten them. New ones are as the mode has it.
    pub fn strand_connections(&self) {
        self.control.send_modify(|control| control.stranded += 1);
    }

    /// Connections accepted so far, refused ones included.
    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// How often clients asked: requests with no piece of reply between them
    /// count once, however many segments they came in. What is swallowed
    /// does not count.
    pub fn round_trips(&self) -> usize {
        self.counts.round_trips.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the test has asked for last.
#[derive(Clone, Copy)]
struct Control {
    mode: Mode,
    target: SocketAddr,
    /// A connection lives only as long as the generation it was accepted in.
    generation: u64,
    /// It goes silent when this grows.
    stranded: u64,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    open: AtomicUsize,
    round_trips: AtomicUsize,
}

/// Counts a connection as open for as long as it lives.
struct Open(Arc<Counts>);

impl Open {
    fn new(counts: Arc<Counts>) -> Self {
        counts.open.fetch_add(1, Ordering::SeqCst);
        Self(counts)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, control: watch::Receiver<Control>, counts: Arc<Counts>) {
    // Aborts the connections when this task is aborted.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        counts.accepted.fetch_add(1, Ordering::SeqCst);
        while connections.try_join_next().is_some() {}
        let open = Open::new(Arc::clone(&counts));
        if matches!(control.borrow().mode, Mode::RefuseNew | Mode::Reset) {
            reset(client);
            continue;
        }
        let connection = Connection::new(client, control.clone(), open);
        connections.spawn(async move {
            // An I/O error is one side's end, which the other side gets to see.
            let _ = connection.run().await;
        });
    }
}

/// What becomes of a connection after a piece of reply.
enum After {
    GoOn,
    Close,
    Reset,
    /// As long as this mode lasts.
    Silence(Mode),
}

/// One client, and how far its conversation has got.
struct Connection {
    client: TcpStream,
    control: watch::Receiver<Control>,
    generation: u64,
    stranded: u64,
    /// A request has passed and no reply since.
    asked: bool,
    /// Replies on their way, each with the time at which it is due.
    late: VecDeque<(Instant, Vec<u8>)>,
    open: Open,
}

impl Connection {
    fn new(client: TcpStream, control: watch::Receiver<Control>, open: Open) -> Self {
        let Control { generation, stranded, .. } = *control.borrow();
        Self { client, control, generation, stranded, asked: false, late: VecDeque::new(), open }
    }

    async fn run(mut self) -> io::Result<()> {
        if self.mode() == Mode::Swallow {
            return self.silence(Mode::Swallow).await;
        }
        let target = self.control.borrow().target;
        let mut server = TcpStream::connect(target).await?;
        self.client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut request = vec![0; 16 * 1024];
        let mut reply = vec![0; 16 * 1024];
        let mut server_open = true;

        while server_open || !self.late.is_empty() {
            let mode = self.mode();
            if mode == Mode::Reset || self.control.borrow().generation != self.generation {
                reset(self.client);
                return Ok(());
            }
            if self.control.borrow().stranded != self.stranded {
                return self.rest().await;
            }
            if mode == Mode::Swallow {
                return self.silence(Mode::Swallow).await;
            }
            // What nobody reads waits in the kernel.
            let flows = mode != Mode::Hold;
            let due = self.late.front().map(|(due, _)| *due);
            tokio::select! {
                // The control first, so that a mode set before a request was
                // sent is in force for it.
                biased;
                changed = self.control.changed() => changed.map_err(io::Error::other)?,
                () = until(due), if flows => self.send_late().await?,
                read = self.client.read(&mut request), if flows => {
                    match read? {
                        0 => return Ok(()),
                        n => self.pass_request(&mut server, &request[..n]).await?,
                    }
                }
                read = server.read(&mut reply), if flows && server_open => {
                    match read? {
                        0 => server_open = false,
                        n => match self.pass_reply(&reply[..n]).await? {
                            After::GoOn => {}
                            After::Close => return Ok(()),
                            After::Reset => {
                                reset(self.client);
                                return Ok(());
                            }
                            After::Silence(mode) => return self.silence(mode).await,
                        },
                    }
                }
            }
        }
        Ok(())
    }

    async fn pass_request(&mut self, server: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        // The mode may have changed between the look at it and the read.
        if self.mode() == Mode::Swallow {
            return Ok(());
        }
        if !self.asked {
            self.asked = true;
            self.open.0.round_trips.fetch_add(1, Ordering::SeqCst);
        }
        server.write_all(bytes).await
    }

    async fn pass_reply(&mut self, bytes: &[u8]) -> io::Result<After> {
        self.asked = false;
        let mode = self.mode();
        match mode {
            Mode::CutReplyAfter(n) | Mode::ResetReplyAfter(n) | Mode::SilentReplyAfter(n) => {
                self.client.write_all(&bytes[..n.min(bytes.len())]).await?;
                return Ok(match mode {
                    Mode::ResetReplyAfter(_) => After::Reset,
                    Mode::SilentReplyAfter(_) => After::Silence(mode),
                    _ => {
                        self.client.shutdown().await?;
                        After::Close
                    }
                });
            }
            Mode::Swallow => {}
            Mode::Delay(delay) => self.late.push_back((Instant::now() + delay, bytes.to_vec())),
            // Never ahead of a reply that is still on its way.
            _ if !self.late.is_empty() => self.late.push_back((Instant::now(), bytes.to_vec())),
            _ => self.client.write_all(bytes).await?,
        }
        Ok(After::GoOn)
    }

    async fn send_late(&mut self) -> io::Result<()> {
        match self.late.pop_front() {
            Some((_, bytes)) => self.client.write_all(&bytes).await,
            None => Ok(()),
        }
    }

    /// Reads into nothing until the mode is another one or the client leaves.
    async fn silence(mut self, mode: Mode) -> io::Result<()> {
        let mut nowhere = vec![0; 16 * 1024];
        while self.mode() == mode && self.control.borrow().generation == self.generation {
            tokio::select! {
                changed = self.control.changed() => changed.map_err(io::Error::other)?,
                read = self.client.read(&mut nowhere) => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
            }
        }
        reset(self.client);
        Ok(())
    }

    /// Reads into nothing until the client leaves.
    async fn rest(mut self) -> io::Result<()> {
        let mut nowhere = vec![0; 16 * 1024];
        while self.client.read(&mut nowhere).await? > 0 {}
        Ok(())
    }

    fn mode(&self) -> Mode {
        self.control.borrow().mode
    }
}

/// Closes with RST in place of FIN.
fn reset(stream: TcpStream) {
    // Without the option it is a plain close, which ends the connection too.
    let _ = stream.set_zero_linger();
    drop(stream);
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => future::pending().await,
    }
}
