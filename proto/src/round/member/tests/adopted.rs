//! What was adopted, and what is void.

use std::sync::Arc;

use super::*;

const TWO: FragmentLayout = FragmentLayout { values: 2, fragment_values: 1 };

/// A generation that adopts this result of the first fragment in round 0; the second fragment is void.
fn adopting(generation: u64, membership: Membership, body: &Bytes) -> Event {
    let results = vec![Adopted {
        fragment: F0,
        hash: *blake3::hash(body).as_bytes(),
        holders: membership.members().iter().map(|member| member.worker).collect(),
    }];
    let settlement = Settlement { open_round: Round(0), complete_at: Vec::new(), results };
    let Event::Begin(mut start) = start_of(membership, Some(settlement)) else {
        unreachable!("it is a start")
    };
    let start_mut = Arc::make_mut(&mut start);
    start_mut.membership.generation = Generation(generation);
    start_mut.active_before = vec![WorkerId(1), WorkerId(2)].into();
    Event::Begin(start)
}

fn pulled(fragment: u32, body: &Bytes) -> Event {
    let (hash, body) = (*blake3::hash(body).as_bytes(), body.clone());
    Event::Pulled { round: Round(0), fragment: FragmentId(fragment), body, hash }
}

/// The result names its site, for a member of it that has died. Its own update is in the void fragment alone, also where the next generation adopts the same
/// result after it has contributed.
#[test]
fn what_was_adopted_before_a_member_contributed_is_without_it() {
    for is_settled_again in [false, true] {
        let (me, round) = (WorkerId(1), Round(0));
        let mut member = Member::new(me, site_of(me), TWO, round, config());
        let adopted = result_of(&[me]);
        commands(&mut member, adopting(2, membership_of(2, TWO), &adopted));
        commands(&mut member, Event::Contribute { round, weight: 1 });
        let mut last = 2;
        if is_settled_again {
            last = 3;
            commands(&mut member, Event::Settle { generation: Generation(3) });
            commands(&mut member, adopting(3, membership_of(3, TWO), &adopted));
        }
        let mut done = commands(&mut member, pulled(0, &adopted));
        // The other one is made of its update, here or by its owner.
        let fragment = FragmentId(1);
        let generation = Generation(last);
        let body = Bytes::from_static(b"own");
        done.extend(commands(&mut member, Event::Compressed { generation, round, fragment, body }));
        match membership_of(last, TWO).owner(fragment) {
            Some(owner) if owner == me => {
                let header = FrameHeader {
                    kind: FrameKind::Contribution,
                    generation,
                    round,
                    fragment,
                    weight: 0,
                    site: SiteId(2),
                };
                let (from, body) = (WorkerId(2), Bytes::new());
                let hash = *blake3::hash(&body).as_bytes();
                done.extend(commands(&mut member, Event::Frame(Frame { from, header, body, hash })));
            }
            owner => {
                let (body, from) = (result_of(&[me]), owner.expect("there are two fragments"));
                let (kind, site, weight) = (FrameKind::Result, site_of(from), 0);
                let header = FrameHeader { kind, generation, round, fragment, weight, site };
                let hash = *blake3::hash(&body).as_bytes();
                done.extend(commands(&mut member, Event::Frame(Frame { from, header, body, hash })));
            }
        }
        assert!(completes(&done), "{done:?}");
        let carried = |fragment| done.contains(&Command::CarryOver { round, fragment });
        assert_eq!([carried(F0), carried(fragment)], [true, false], "{is_settled_again}: {done:?}");
    }
}

/// The residual of a mean that is void is void as well, from the first round that is made anew; that of an adopted one stays.
#[test]
fn an_owner_goes_back_over_all_rounds_that_are_void() {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut moved = 0;
    for me in [1, 2].map(WorkerId) {
        // It owns everything alone, and then nothing of what the other one owns.
        let member_of = PlanMember {
            worker: me,
            site: site_of(me),
            lan_address: address,
            wan_address: address,
            upload_weight: 1,
        };
        let mut member = Member::new(me, site_of(me), TWO, Round(0), config());
        commands(&mut member, start_of(Membership::assign(Generation(1), vec![member_of], TWO, 1), None));
        let both = membership_of(2, TWO);
        let done = commands(&mut member, adopting(2, both.clone(), &result_of(&[me])));
        for fragment in TWO.fragments().filter(|fragment| both.owner(*fragment) != Some(me)) {
            moved += 1;
            let void_from = Round(u64::from(fragment == F0));
            assert!(done.contains(&Command::MoveOwnerResidual { fragment, void_from }), "{done:?}");
        }
    }
    assert_eq!(moved, 2);
}
