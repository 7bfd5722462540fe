//! Which of the 16384 slots of a cluster a key is in.

use crc::{CRC_16_XMODEM, Crc};

/// As the cluster specification has it.
const SLOTS: u16 = 16_384;

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The part of a key that is hashed: what its first braces hold, or all of it.
/// In pieces, so that it need not be put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag<'a>(pub(crate) [&'a str; 4]);

impl<'a> Tag<'a> {
    /// Of a whole key.
    pub(crate) fn of(key: &'a str) -> Self {
        let braced = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        match braced {
            Some((tag, _)) if !tag.is_empty() => Self([tag, "", "", ""]),
            _ => Self([key, "", "", ""]),
        }
    }

    pub(crate) fn slot(self) -> u16 {
        let mut digest = CRC.digest();
        for piece in self.0 {
            digest.update(piece.as_bytes());
        }
        digest.finalize() % SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_that_of_the_specification() {
        // `CLUSTER KEYSLOT` of a server.
        for (key, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}", 12_182),
            ("login:rl:{foo}:ann", 12_182),
            ("a{foo}b{bar}", 12_182),
            ("{}foo", 9_500),
            ("", 0),
        ] {
            assert_eq!(Tag::of(key).slot(), slot, "{key}");
        }
        assert_eq!(Tag(["f", "o", "", "o"]).slot(), 12_182);
    }
}
