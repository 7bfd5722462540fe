//! The faults of the matrix, each of them a test and a row of the README.

use std::collections::BTreeSet;

/// By number: `fault_NN_...` is its test.
const FAULTS: &[(u8, &str)] = &[
    (1, "absent at start"),
    (2, "SIGKILL, later started again, empty"),
    (3, "SIGSTOP before the first use"),
    (4, "SIGSTOP in mid-run, SIGCONT after a while"),
    (5, "SIGSTOP, SIGCONT after 150 ms"),
    (6, "restart at once, with its data and without the script"),
    (7, "LOADING"),
    (8, "killed and started every 300 ms for 5 s"),
    (10, "a proxy accepts and swallows, from the start"),
    (11, "a proxy accepts and swallows, in mid-run"),
    (12, "20 ms more a round trip"),
    (13, "80 ms more a round trip"),
    (14, "300 ms more a round trip"),
    (15, "one answer late by 150 ms"),
    (16, "reset in the middle of each reply"),
    (17, "half of each reply, then closed"),
    (18, "half of each reply, then silence"),
    (19, "150 ms more a round trip, for 4 s"),
    (20, "SCRIPT FLUSH under 50 parallel requests"),
    (21, "REPLICAOF (READONLY)"),
    (22, "BUSY (a long script)"),
    (23, "OOM (maxmemory, noeviction)"),
    (24, "NOREPLICAS (min-replicas-to-write 1)"),
    (25, "MISCONF (it cannot save)"),
    (26, "maxclients 1, and somebody is there"),
    (27, "requirepass, no password given"),
    (28, "requirepass, a wrong password given"),
    (29, "an ACL loses EVALSHA"),
    (30, "a database that there is not"),
    (31, "keys of other types (WRONGTYPE)"),
];

/// What it is called in the table.
pub(crate) fn name(number: u8) -> &'static str {
    let fault = FAULTS.iter().find(|(other, _)| *other == number);
    fault.unwrap_or_else(|| panic!("fault {number} is not in the list")).1
}

/// The rows between the markers, which `tests/faults readme` writes.
fn rows_of_readme() -> Vec<Vec<&'static str>> {
    let readme = include_str!("../../README.md");
    let (_, rest) = readme.split_once("<!-- faults -->\n").expect("a marker before the table");
    let (table, _) = rest.split_once("<!-- end of faults -->").expect("a marker behind it");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_table_in_the_readme_has_every_fault_and_nothing_else() {
    let rows = rows_of_readme();
    let told: Vec<_> = rows.iter().map(|row| row[0]).collect();
    let played: Vec<_> = FAULTS.iter().map(|(_, name)| *name).collect();
    assert_eq!(told, played);
    for row in rows {
        assert_eq!(row.len(), 7, "{row:?}");
        assert!(row[5].ends_with(" of 240"), "{row:?}");
    }
}

#[test]
fn every_fault_has_one_test_and_every_test_a_fault() {
    let sources = [include_str!("answers.rs"), include_str!("path.rs"), include_str!("process.rs")];
    let tests = sources.iter().flat_map(|source| source.split("async fn fault_").skip(1));
    let tests: Vec<u8> = tests.map(|test| test[..2].parse().unwrap()).collect();
    let numbers: BTreeSet<u8> = FAULTS.iter().map(|(number, _)| *number).collect();
    assert_eq!(tests.len(), FAULTS.len());
    assert_eq!(tests.into_iter().collect::<BTreeSet<_>>(), numbers);
}
