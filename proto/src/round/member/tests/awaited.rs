//! Members on which results depend.

use super::*;

#[test]
fn who_has_contributed_awaits_the_owners_of_what_is_missing() {
    let contribute = || Event::Contribute { round: Round(0), weight: 0 };
    let mut member = Member::new(other(), site_of(other()), LAYOUT, Round(0), config());
    assert!(member.awaited().is_empty(), "there is no generation");
    member.handle(MS(0), start(1, None));
    member.handle(MS(0), Event::Computing { round: Round(0) });
    assert!(member.awaited().is_empty(), "what could come is not waited for yet");
    member.handle(MS(0), contribute());
    assert_eq!(member.awaited(), [owner()].into());
    let mut owns = Member::new(owner(), site_of(owner()), LAYOUT, Round(0), config());
    owns.handle(MS(0), start(1, None));
    owns.handle(MS(0), Event::Computing { round: Round(0) });
    owns.handle(MS(0), contribute());
    assert_eq!(owns.awaited(), [other()].into(), "whose contribution is not here, and not itself");
    member.handle(MS(1), Event::Settle { generation: Generation(2) });
    assert!(member.awaited().is_empty(), "results of this generation do not come any more");
}
