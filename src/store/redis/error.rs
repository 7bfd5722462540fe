//! What an error of the client or the server means for the limiter.
//!
//! By error code, never by the whole text: servers differ in it. Redis up to
//! 6.2 wraps what a command inside a script answers, and puts the script's line
//! in front of what the script has caught, so the code is looked for inside such
//! messages as well.

use redis::{ErrorKind, RedisError};

use crate::store::{StoreError, StoreErrorKind};

/// Classifies an error.
pub(super) fn classify(error: &RedisError) -> StoreError {
    if error.is_timeout() {
        return StoreError::new(StoreErrorKind::Timeout);
    }
    #[cfg(feature = "tls")]
    if super::tls::has_failed(error) {
        return StoreError::new(StoreErrorKind::Tls);
    }
    if error.kind() == ErrorKind::RESP3NotSupported {
        return StoreError::new(StoreErrorKind::UnknownCommand);
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return StoreError::new(StoreErrorKind::Auth);
    }
    match error.code() {
        Some(code) => by_code(code, error.detail().unwrap_or_default()),
        None if error.is_io_error() || error.is_unrecoverable_error() => StoreError::new(StoreErrorKind::Io),
        None => StoreError::new(StoreErrorKind::Other),
    }
}

/// Whether the connection is of no more use.
pub(super) fn breaks_connection(kind: StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::Io
            | StoreErrorKind::Tls
            | StoreErrorKind::ReadOnly
            | StoreErrorKind::Auth
            | StoreErrorKind::MaxClients
    )
}

fn by_code(code: &str, detail: &str) -> StoreError {
    match known(code) {
        Some(kind) => StoreError::with_code(kind, code),
        // `-@user_script: 41: ...`
        None if code.starts_with('@') => inside(detail),
        None => within(detail),
    }
}

fn known(code: &str) -> Option<StoreErrorKind> {
    Some(match code {
        "READONLY" => StoreErrorKind::ReadOnly,
        "LOADING" => StoreErrorKind::Loading,
        "BUSY" => StoreErrorKind::Busy,
        "CLUSTERDOWN" | "TRYAGAIN" => StoreErrorKind::ClusterDown,
        "MASTERDOWN" => StoreErrorKind::MasterDown,
        "OOM" => StoreErrorKind::OutOfMemory,
        "MISCONF" => StoreErrorKind::PersistenceFailed,
        "NOREPLICAS" => StoreErrorKind::NoReplicas,
        "NOAUTH" | "WRONGPASS" => StoreErrorKind::Auth,
        "NOPERM" => StoreErrorKind::Forbidden,
        // A redirect that a client without a cluster cannot follow.
        "CROSSSLOT" | "MOVED" | "ASK" => StoreErrorKind::CrossSlot,
        "NOPROTO" => StoreErrorKind::UnknownCommand,
        _ => return None,
    })
}

/// The kind of a plain `ERR`, from the start of its text.
fn within(detail: &str) -> StoreError {
    let starts = |text: &str| detail.get(..text.len()).is_some_and(|head| head.eq_ignore_ascii_case(text));
    let kind = if starts("max number of clients") {
        StoreErrorKind::MaxClients
    } else if starts("unknown command") || starts("unknown subcommand") {
        StoreErrorKind::UnknownCommand
    } else if starts("the user executing the script") || starts("operation not permitted") {
        StoreErrorKind::Forbidden
    } else if starts("db index is out of range") || starts("invalid db index") {
        StoreErrorKind::Database
    } else if starts("this instance has cluster support disabled") {
        StoreErrorKind::UnknownCommand
    } else if starts("select is not allowed in cluster") {
        StoreErrorKind::CrossSlot
    } else if starts("error running script") {
        return inside(detail);
    } else {
        StoreErrorKind::Other
    };
    StoreError::new(kind)
}

/// The kind of a script's error, from the code that it carries inside.
fn inside(detail: &str) -> StoreError {
    let mut words = detail.split(|c: char| !c.is_ascii_alphanumeric());
    match words.find_map(|word| known(word).map(|kind| (kind, word))) {
        Some((kind, code)) => StoreError::with_code(kind, code),
        None if detail.contains("user executing the script") => StoreError::new(StoreErrorKind::Forbidden),
        None => StoreError::new(StoreErrorKind::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_classes() {
        for (code, kind) in [
            ("READONLY", StoreErrorKind::ReadOnly),
            ("MISCONF", StoreErrorKind::PersistenceFailed),
            ("WRONGPASS", StoreErrorKind::Auth),
            ("MOVED", StoreErrorKind::CrossSlot),
        ] {
            assert_eq!(by_code(code, "whatever").kind(), kind, "{code}");
        }
    }

    #[test]
    fn a_plain_err_is_told_by_its_text() {
        for (detail, kind) in [
            ("max number of clients reached", StoreErrorKind::MaxClients),
            ("unknown command 'EVALSHA', with args beginning with: ", StoreErrorKind::UnknownCommand),
            (
                "The user executing the script can't run this command or subcommand script: f00",
                StoreErrorKind::Forbidden,
            ),
            ("DB index is out of range", StoreErrorKind::Database),
            ("This instance has cluster support disabled", StoreErrorKind::UnknownCommand),
            ("SELECT is not allowed in cluster mode", StoreErrorKind::CrossSlot),
            ("value is not an integer", StoreErrorKind::Other),
            ("", StoreErrorKind::Other),
        ] {
            assert_eq!(by_code("ERR", detail).kind(), kind, "{detail}");
        }
    }

    #[test]
    fn redis_6_2_wraps_the_code_inside_a_script_error() {
        for (inside, kind) in [
            ("-READONLY You can't write against a read only replica.", StoreErrorKind::ReadOnly),
            ("-MISCONF Redis is configured to save RDB snapshots", StoreErrorKind::PersistenceFailed),
            ("OOM command not allowed when used memory > 'maxmemory'.", StoreErrorKind::OutOfMemory),
            ("-NOREPLICAS Not enough good replicas to write.", StoreErrorKind::NoReplicas),
        ] {
            let detail =
                format!("Error running script (call to f_0a): @user_script:9: @user_script: 9: {inside}");
            assert_eq!(by_code("ERR", &detail).kind(), kind, "{inside}");
        }
    }

    #[test]
    fn redis_6_2_names_the_line_of_an_error_that_the_script_has_caught() {
        for (inside, kind) in [
            ("The user executing the script can't run this command or subcommand", StoreErrorKind::Forbidden),
            ("-MASTERDOWN Link with MASTER is down", StoreErrorKind::MasterDown),
            ("something else", StoreErrorKind::Other),
        ] {
            assert_eq!(by_code("@user_script:", &format!("41: {inside}")).kind(), kind, "{inside}");
        }
    }
}
