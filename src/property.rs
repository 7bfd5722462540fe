//! How much property tests play.

use proptest::test_runner::Config;

/// So many cases, or more by `PROPTEST_CASES`.
pub(crate) fn at_least(cases: u32) -> Config {
    let set = Config::default();
    Config { cases: set.cases.max(cases), ..set }
}
