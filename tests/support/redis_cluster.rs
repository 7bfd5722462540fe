//! A private Redis Cluster: masters without replicas, each a process of its own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::redis_server::{FREE_PORT, RedisServer};
use super::resp::Reply;

const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// What makes a server a node. The others go on when one is missing.
const NODE: [&str; 10] = [
    "--cluster-enabled",
    "yes",
    "--cluster-config-file",
    "nodes.conf",
    "--cluster-node-timeout",
    "1000",
    "--cluster-require-full-coverage",
    "no",
    "--cluster-port",
    FREE_PORT,
];

/// A running cluster. Its processes end when it is dropped.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Three masters, each with a third of the slots.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`start`](Self::start), with further arguments of each `redis-server`.
    pub fn start_with(args: &[&str]) -> Self {
        let cluster = Self { nodes: (0..3).map(|_| Self::start_node(args)).collect() };
        let mut create: Vec<String> = vec![String::from("create")];
        create.extend(cluster.nodes.iter().map(|node| node.addr().to_string()));
        create.extend(["--cluster-replicas", "0", "--cluster-yes"].map(String::from));
        let created = cluster.cli(&create).output().expect("redis-cli runs");
        let said = String::from_utf8_lossy(&created.stdout).into_owned();
        assert!(created.status.success(), "the cluster was not created: {said}");
        for node in &cluster.nodes {
            wait_until("a node takes part", || {
                node.command(&["CLUSTER", "INFO"])
                    .text()
                    .is_some_and(|info| info.contains("cluster_state:ok"))
            });
        }
        cluster
    }

    /// A node that belongs to no cluster yet.
    pub fn start_node(args: &[&str]) -> RedisServer {
        RedisServer::start_with(&[&NODE, args].concat())
    }

    /// A replica of a node, in step with it.
    pub fn add_replica_of(&self, master: usize) -> RedisServer {
        let replica = Self::start_node(&[]);
        self.nodes[master].command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        let (new, known) = (replica.addr().to_string(), self.nodes[master].addr().to_string());
        let id = self.id(master);
        let added = self.cli(&["add-node", &new, &known, "--cluster-slave", "--cluster-master-id", &id]);
        let said = { added }.output().expect("redis-cli runs");
        assert!(said.status.success(), "no replica: {}", String::from_utf8_lossy(&said.stdout));
        wait_until("the replica is in step", || {
            replica.info("replication", "master_link_status").as_deref() == Some("up")
        });
        replica
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Which node has the slot of a key, as they agree.
    pub fn owner(&self, key: &str) -> usize {
        let slot = self.slot(key);
        let slots = self.nodes.iter().map(own_slots);
        let owners: Vec<_> = slots
            .enumerate()
            .filter(|(_, own)| own.iter().any(|&(start, end)| start <= slot && slot <= end))
            .collect();
        assert_eq!(owners.len(), 1, "slot {slot} of {key}: {owners:?}");
        owners[0].0
    }

    pub fn slot(&self, key: &str) -> i64 {
        self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int()
    }

    /// The string at a key, wherever it is.
    pub fn get(&self, key: &str) -> Option<String> {
        self.nodes[self.owner(key)].get(key)
    }

    /// `redis-cli --cluster` with these arguments.
    pub fn cli<A: AsRef<str>>(&self, args: &[A]) -> Command {
        let beside = env::var_os("REDIS_SERVER").map(|server| Path::new(&server).with_file_name("redis-cli"));
        let cli = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("redis-cli"));
        let mut command = Command::new(cli);
        command.arg("--cluster").args(args.iter().map(AsRef::as_ref)).stdin(Stdio::null());
        command
    }

    /// Starts to move so many slots from one node to another.
    pub fn reshard(&self, from: usize, to: usize, slots: u16) -> Child {
        let id = |node: usize| self.id(node);
        let (from_id, to_id, slots) = (id(from), id(to), slots.to_string());
        let address = self.nodes[from].addr().to_string();
        self.cli(&[
            "reshard",
            &address,
            "--cluster-from",
            &from_id,
            "--cluster-to",
            &to_id,
            "--cluster-slots",
            &slots,
            "--cluster-yes",
        ])
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-cli runs")
    }

    pub fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"]).text().expect("an id")
    }
}

/// The ranges of slots that a node takes for its own.
pub fn own_slots(node: &RedisServer) -> Vec<(i64, i64)> {
    let ranges = node.command(&["CLUSTER", "SLOTS"]).array();
    let own = |range: Reply| {
        let mut parts = range.array().into_iter();
        let mut next = || parts.next().expect("start, end, master");
        let (start, end) = (next().int(), next().int());
        let port = next().array().into_iter().nth(1).expect("a port").int();
        (port == i64::from(node.port())).then_some((start, end))
    };
    ranges.into_iter().filter_map(own).collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "it never came true that {what}");
        thread::sleep(PAUSE);
    }
}
