//! Common code of tests and fuzz targets of the iSCSI machines: the PDUs of a login, and both machines at edges in
//! memory, with users at both ends. For tests only: it panics when an invariant does not hold.
#![forbid(unsafe_code)]

mod blank;
mod edge;
mod pair;
mod users;

pub use blank::{answer, request};
pub use pair::Pair;
pub use users::{FAIL, Load, NONE, READ, WRITE};

use std::time::Duration;

use iscsi::name::IscsiName;
use iscsi::params::Params;
use iscsi::target::{AuthRequirement, Policy};
use iscsi::wire::{CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn};

/// The fixed time of sessions without a clock.
pub const NOW: Duration = Duration::from_secs(100);

pub const INITIATOR: &str = "iqn.2026-11.test:i";
pub const TARGET: &str = "iqn.2026-11.test:t";

/// SplitMix64: sufficient for schedules, and equal on all platforms.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    #[expect(clippy::should_implement_trait, reason = "numbers without an end are no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `one_in` times.
    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// One element of a list that must not be empty.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

pub fn name(text: &str) -> IscsiName {
    IscsiName::parse(text).expect("a name")
}

/// The initiator's configuration of a login without authentication.
pub fn login() -> iscsi::login::initiator::Config {
    iscsi::login::initiator::Config::normal(name(INITIATOR), Isid::random([0; 3], 0), name(TARGET))
}

/// The target's policy of sessions without authentication.
pub fn policy(params: Params) -> Policy {
    Policy {
        auth: AuthRequirement::None,
        portal_group_tag: 1,
        target_alias: None,
        params,
        next_key: iscsi::login::NextKey::Unsaid,
    }
}

/// The only request of a login without authentication, with this text.
pub fn login_request(cmd_sn: CmdSn, text: &[u8]) -> LoginRequest {
    LoginRequest {
        transit: true,
        continues: false,
        csg: Stage::Operational,
        nsg: Stage::FullFeature,
        version_max: 0,
        version_min: 0,
        isid: Isid::random([0; 3], 0),
        tsih: 0,
        itt: Itt(0),
        cid: 0,
        cmd_sn,
        exp_stat_sn: StatSn(0),
        data_segment_length: u32::try_from(text.len()).expect("short"),
    }
}

/// The response that ends the login of `request`, with this text.
pub fn login_response(
    request: &LoginRequest,
    stat_sn: StatSn,
    max_cmd_sn: CmdSn,
    text: &[u8],
) -> LoginResponse {
    LoginResponse {
        transit: true,
        continues: false,
        csg: Stage::Operational,
        nsg: Stage::FullFeature,
        version_max: 0,
        version_active: 0,
        isid: request.isid,
        tsih: 1,
        itt: request.itt,
        stat_sn,
        exp_cmd_sn: request.cmd_sn,
        max_cmd_sn,
        status: LoginStatus::Success,
        data_segment_length: u32::try_from(text.len()).expect("short"),
    }
}
