//! Faults of the path: black holes, delays, resets, pieces of answers.

use tower_ratelimit::store::StoreErrorKind;

use crate::run::{Expected, Run};
use crate::setup::{eventually, ms};
use crate::support::Mode;

#[tokio::test]
async fn fault_10_swallowed_from_the_start() {
    let mut run = Run::proxied(10).await;
    run.proxy().set_mode(Mode::Swallow);
    run.begin_in_trouble().await;
    run.suffer().await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["lost timeout", "connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_11_swallowed_in_mid_run() {
    let mut run = Run::proxied(11).await;
    run.begin().await;
    run.proxy().set_mode(Mode::Swallow);
    run.suffer().await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost timeout", "connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_12_20_ms_a_round_trip() {
    let mut run = Run::proxied(12).await;
    run.begin().await;
    run.proxy().set_mode(Mode::Delay(ms(20)));
    run.suffer().await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected { lines: Some(&["connected"]), ..Expected::default() }).await;
}

#[tokio::test]
async fn fault_13_80_ms_a_round_trip() {
    let mut run = Run::proxied(13).await;
    run.begin().await;
    run.proxy().set_mode(Mode::Delay(ms(80)));
    run.suffer().await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected { lines: Some(&["connected"]), ..Expected::default() }).await;
}

#[tokio::test]
async fn fault_14_300_ms_a_round_trip() {
    let mut run = Run::proxied(14).await;
    run.begin().await;
    run.proxy().set_mode(Mode::Delay(ms(300)));
    run.suffer().await;
    assert!(!run.is_connected());
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost timeout", "connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

/// It answers the probe, and every check too late.
#[tokio::test]
async fn fault_19_150_ms_a_round_trip() {
    let mut run = Run::proxied(19).await;
    run.begin().await;
    run.proxy().set_mode(Mode::Delay(ms(150)));
    run.wait(ms(4000)).await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost timeout", "connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_15_one_answer_late() {
    let mut run = Run::proxied(15).await;
    run.begin().await;
    run.proxy().set_mode(Mode::Delay(ms(150)));
    let before = run.proxy().round_trips();
    eventually("somebody has asked", || run.proxy().round_trips() > before).await;
    // Its answer is on its way by then.
    run.wait(ms(5)).await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    let accepted = run.proxy().accepted();
    assert_eq!(accepted, 1, "nothing was dropped");
    run.end(Expected {
        lines: Some(&["connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_16_reset_in_mid_reply() {
    let mut run = Run::proxied(16).await;
    run.begin().await;
    run.proxy().set_mode(Mode::ResetReplyAfter(6));
    run.suffer().await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost io", "connected"]),
        reason: Some(StoreErrorKind::Io),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_17_half_a_reply_and_the_end() {
    let mut run = Run::proxied(17).await;
    run.begin().await;
    run.proxy().set_mode(Mode::CutReplyAfter(6));
    run.suffer().await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost io", "connected"]),
        reason: Some(StoreErrorKind::Io),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_18_half_a_reply_and_silence() {
    let mut run = Run::proxied(18).await;
    run.begin().await;
    run.proxy().set_mode(Mode::SilentReplyAfter(6));
    run.suffer().await;
    run.proxy().set_mode(Mode::Forward);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost timeout", "connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}
