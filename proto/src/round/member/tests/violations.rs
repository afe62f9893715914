//! Peers that break the rules.

use super::*;

#[test]
fn frames_that_are_not_their_senders_to_send_change_nothing_and_are_reported() {
    let mut member = begun(owner());
    let stranger = frame(WorkerId(9), FrameKind::Contribution, 1, 0, 1, Bytes::new());
    let no_uploader_of_ours = frame(other(), FrameKind::Local, 1, 0, 1, Bytes::new());
    let no_owner = frame(other(), FrameKind::Result, 1, 0, 0, result_of(&[other()]));
    for event in [stranger, no_uploader_of_ours, no_owner] {
        assert_eq!(accused(&commands(&mut member, event)), Some(Violation::NotItsDuty));
    }
    let Event::Frame(mut lie) = contribution(0) else { unreachable!("it is a frame") };
    lie.header.site = site_of(owner());
    assert_eq!(accused(&commands(&mut member, Event::Frame(lie.clone()))), Some(Violation::NotItsDuty));
    lie.header.site = site_of(other());
    lie.header.fragment = FragmentId(1);
    assert_eq!(accused(&commands(&mut member, Event::Frame(lie))), Some(Violation::NotItsDuty));
    assert_eq!(member.dropped().unexpected, 5);
    assert_eq!(member.frames_held(), 0);
}

#[test]
fn a_peer_that_breaks_every_rule_does_not_fill_the_log() {
    let mut member = begun(owner());
    let bad = || frame(WorkerId(9), FrameKind::Local, 1, 0, 1, Bytes::new());
    let reported = (0..1_000).filter(|_| accused(&commands(&mut member, bad())).is_some()).count();
    assert_eq!(reported, ACCUSATIONS_MAX as usize);
    assert_eq!(member.dropped().unexpected, 1_000);
}

#[test]
fn a_result_must_be_readable_and_name_members_and_have_one_version() {
    let mut member = begun(other());
    for body in [Bytes::from_static(b"\x07"), result_of(&[WorkerId(9)])] {
        assert_eq!(
            accused(&commands(&mut member, result_frame(1, 0, body))),
            Some(Violation::MalformedResult)
        );
    }
    // A second fragment would be needed to keep round 0 open; a later round stays open as well.
    assert_eq!(commands(&mut member, result_frame(1, 1, result_of(&[owner()]))), []);
    commands(&mut member, result_frame(1, 1, result_of(&[owner()])));
    assert_eq!(member.dropped().duplicate, 1);
    let second = commands(&mut member, result_frame(1, 1, result_of(&[other()])));
    assert_eq!(accused(&second), Some(Violation::ConflictingResult));
}
