//! A private `redis-server` process: a free port, a directory of its own,
//! gone when dropped. No other Redis is ever touched.

use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::resp::{Reply, RespClient};

/// A server that is not up by then, or does not end by then, never will be.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at a server that starts or ends.
const PAUSE: Duration = Duration::from_millis(5);
/// Ports tried: a free one may be taken before Redis listens on it.
const ATTEMPTS: u32 = 10;
/// What Redis prints once the port is its own.
const READY: &str = "Ready to accept connections";

/// As an argument of a server, another port on which nobody listens.
pub const FREE_PORT: &str = "<free port>";

/// One running Redis. Its methods block, briefly, and panic with the reason
/// when something does not work. Commands share one connection, which shows
/// in `CLIENT LIST` under the name `assertions`.
pub struct RedisServer {
    port: u16,
    args: Vec<String>,
    child: Option<Child>,
    client: Mutex<Option<RespClient>>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server without persistence and waits until it answers.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`start`](Self::start), with further arguments of `redis-server`
    /// (`["--maxmemory", "1mb"]`). A `--requirepass` is used by the commands
    /// below too; a [`FREE_PORT`] is tried until one is free.
    pub fn start_with(args: &[&str]) -> Self {
        let mut server =
            Self { port: 0, args: Vec::new(), child: None, client: Mutex::new(None), dir: TempDir::new() };
        let mut failure = String::new();
        for _ in 0..ATTEMPTS {
            server.port = free_port();
            let port =
                |arg: &&str| if *arg == FREE_PORT { free_port().to_string() } else { (*arg).to_owned() };
            server.args = args.iter().map(port).collect();
            match server.launch() {
                Ok(()) => return server,
                Err(reason) => failure = reason,
            }
        }
        panic!("redis-server did not start in {ATTEMPTS} attempts, the last one said:\n{failure}");
    }

    /// `redis://127.0.0.1:PORT`, without a password.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Stays the same over a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of an argument, such as `--tls-port`.
    pub fn arg(&self, name: &str) -> Option<&str> {
        let at = self.args.iter().position(|arg| arg == name)?;
        self.args.get(at + 1).map(String::as_str)
    }

    /// The loopback address and the port.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The directory that Redis runs in, removed on drop.
    pub fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// SIGKILL: connections are reset and all data is lost.
    pub fn kill(&mut self) {
        self.disconnect();
        if let Some(mut child) = self.child.take() {
            // Fails only if it has ended already.
            let _ = child.kill();
            child.wait().expect("the server can be waited for");
        }
    }

    /// SIGTERM: Redis closes its connections and ends by itself.
    pub fn shutdown(&mut self) {
        self.signal("TERM");
        let started = Instant::now();
        while let Some(child) = &mut self.child {
            if child.try_wait().expect("the server can be waited for").is_some() {
                self.child = None;
            } else if started.elapsed() > PATIENCE {
                panic!("redis-server did not end on SIGTERM");
            } else {
                thread::sleep(PAUSE);
            }
        }
        self.disconnect();
    }

    /// An empty server on the same port, with the same arguments. Kills the
    /// one that still runs.
    pub fn restart(&mut self) {
        self.kill();
        let started = Instant::now();
        // For a moment the port may belong to somebody's outgoing connection.
        while let Err(reason) = self.launch() {
            assert!(started.elapsed() < PATIENCE, "redis-server did not restart:\n{reason}");
            thread::sleep(PAUSE);
        }
    }

    /// SIGSTOP: the kernel still accepts connections, nobody answers on them.
    pub fn stop_signal(&self) {
        self.signal("STOP");
    }

    /// SIGCONT: goes on where [`stop_signal`](Self::stop_signal) stopped it,
    /// and answers what has arrived meanwhile.
    pub fn cont(&self) {
        self.signal("CONT");
    }

    /// Runs one command. An error reply is a [`Reply::Error`].
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client
            .get_or_insert_with(|| self.connect().expect("a connection to the private Redis"))
            .command(args)
            .expect("an answer of the private Redis within five seconds")
    }

    /// The string at `key`.
    pub fn get(&self, key: &str) -> Option<String> {
        self.command(&["GET", key]).text()
    }

    /// Milliseconds until `key` ends; -1 without expiry, -2 without key.
    pub fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key]).int()
    }

    /// All keys that match a glob, sorted, read by SCAN.
    pub fn keys_matching(&self, pattern: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut page =
                self.command(&["SCAN", &cursor, "MATCH", pattern, "COUNT", "1000"]).array().into_iter();
            cursor = page.next().and_then(Reply::text).expect("a cursor");
            let found = page.next().expect("a page of keys").array();
            keys.extend(found.into_iter().filter_map(Reply::text));
            if cursor == "0" {
                break;
            }
        }
        keys.sort();
        // SCAN may show a key twice.
        keys.dedup();
        keys
    }

    /// How often the server ran a command (`evalsha`), failed calls included.
    pub fn commandstat(&self, name: &str) -> u64 {
        self.info("commandstats", &format!("cmdstat_{}", name.to_ascii_lowercase())).map_or(0, |stat| {
            stat.strip_prefix("calls=")
                .and_then(|rest| rest.split(',').next())
                .and_then(|calls| calls.parse().ok())
                .expect("calls=N,...")
        })
    }

    /// One field of `INFO section`, such as `("clients", "connected_clients")`.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let text = self.command(&["INFO", section]).text()?;
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.to_owned())
    }

    /// The major version.
    pub fn version(&self) -> u32 {
        let version = self.info("server", "redis_version").expect("a version");
        version.split('.').next().and_then(|major| major.parse().ok()).expect("a number")
    }

    /// What the server has logged since it was started last.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Spawns the process and waits until it listens and answers.
    fn launch(&mut self) -> Result<(), String> {
        self.child = Some(self.spawn());
        self.wait_until_ready()
            .inspect_err(|_| self.kill())
            .map_err(|reason| format!("{reason}\n{}", self.log()))?;
        self.command(&["PING"]);
        Ok(())
    }

    fn spawn(&self) -> Child {
        let binary = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let log = File::create(self.log_path()).expect("a log file");
        Command::new(&binary)
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--port", &self.port.to_string()])
            .arg("--dir")
            .arg(self.dir())
            .args(&self.args)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a second handle"))
            .stdout(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "this test needs redis-server ({}: {error}): run tests/run, which installs \
                     it, or set REDIS_SERVER to the binary",
                    binary.display()
                )
            })
    }

    /// By its log and not by PING alone: a stranger that took the port first
    /// would answer PING too.
    fn wait_until_ready(&mut self) -> Result<(), &'static str> {
        let started = Instant::now();
        while !self.log().contains(READY) {
            let child = self.child.as_mut().expect("a spawned server");
            if child.try_wait().expect("the server can be waited for").is_some() {
                return Err("it ended:");
            }
            if started.elapsed() > PATIENCE {
                return Err("it was not ready in time:");
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn connect(&self) -> io::Result<RespClient> {
        let mut client = RespClient::connect(self.addr())?;
        if let Some(password) = self.arg("--requirepass") {
            client.command(&["AUTH", password])?;
        }
        client.command(&["CLIENT", "SETNAME", "assertions"])?;
        Ok(client)
    }

    fn disconnect(&mut self) {
        *self.client.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Through the shell's `kill`: there is no safe call for it, and not every
    /// machine has the program.
    fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("a running server");
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", name])
            .arg(child.id().to_string())
            .status()
            .expect("sh runs");
        assert!(status.success(), "SIG{name} was not delivered");
    }

    fn log_path(&self) -> PathBuf {
        self.dir.0.join("redis.log")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A loopback port on which nobody listens now: for a server to be started,
/// or as an address that refuses connections.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port");
    listener.local_addr().expect("its address").port()
}

/// Removed with all that is in it when dropped.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("tower-ratelimit-{}-{count}", process::id());
            let path = env::temp_dir().join(name);
            // Not `create_dir_all`: what exists is somebody else's.
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot create {}: {error}", path.display()),
            }
        }
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Too late to complain, and the system clears its temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
