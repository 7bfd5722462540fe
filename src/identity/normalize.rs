//! Ready-made rewriting of names, for the `normalize` hooks.

use unicode_normalization::UnicodeNormalization as _;

/// An account name as most account tables compare it: without white space
/// around it, in lower case, in Unicode normalization form C (NFC).
///
/// Use it if your look-up ignores case: otherwise `Ann@example.org` and
/// `ann@example.org` are one account with two allowances. The lower case is
/// Unicode's, for no language in particular:
///
/// * `I` becomes `i`. The Turkish dotless `ı` stays what it is, and `İ` becomes
///   `i` with a combining dot: three different names.
/// * It is not case folding: `ß` is not `ss`.
/// * White space inside the name stays, and letters of other scripts that look
///   alike stay different.
///
/// Where your look-up does differently, pass your own function.
///
/// ```
/// use tower_ratelimit::identity::normalize::account;
///
/// assert_eq!(account(" Jose\u{301}@Example.org "), "josé@example.org");
/// ```
#[must_use]
pub fn account(name: &str) -> String {
    // Composed before, as case mappings know composed letters; and after, as
    // lower case may leave a letter and a mark that compose.
    let composed: String = name.trim().nfc().collect();
    composed.to_lowercase().nfc().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::account;

    #[test]
    fn o_key_6_spellings_of_one_account_are_one_name() {
        for (left, right) in [
            ("Ann@Example.org", "ann@example.org "),
            ("jos\u{e9}@example.org", "JOSE\u{301}@example.org"),
            ("ΟΔΟΣ", "οδος"),
        ] {
            assert_eq!(account(left), account(right));
        }
    }

    #[test]
    fn o_key_6_turkish_letters_stay_apart() {
        assert_eq!(account("AL\u{131}"), "al\u{131}");
        assert_eq!(account("AL\u{130}"), "ali\u{307}");
        assert_eq!(account("ALI"), "ali");
    }

    proptest! {
        #[test]
        fn a_normal_name_is_its_own_normal_form(name in any::<String>()) {
            let once = account(&name);
            prop_assert_eq!(account(&once), once);
        }
    }
}
