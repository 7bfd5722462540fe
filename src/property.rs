//! How much property tests play.

use proptest::test_runner::Config;

/// So many cases, or more by `PROPTEST_CASES`.
pub(crate) fn at_least(cases: u32) -> Config {
    let set = Config::default();
    // With more cases, more inputs are of no use.
    let (max_local_rejects, max_global_rejects) = (u32::MAX, u32::MAX);
    Config { cases: set.cases.max(cases), max_local_rejects, max_global_rejects, ..set }
}
