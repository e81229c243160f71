//! Serial numbers: 32 bits that wrap, compared by RFC 1982 (RFC 7143 §4.2.2).
//!
//! `<` and `>` are deliberately not implemented: with wrap-around they are no total order. Use
//! [`precedes`](CmdSn::precedes), [`distance_from`](CmdSn::distance_from) and [`within`](CmdSn::within).

macro_rules! serial {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.wrapping_add(1))
            }

            /// The number `count` after this one; `count` must stay below 2^31 to be comparable with `self`.
            #[must_use]
            pub const fn plus(self, count: u32) -> Self {
                Self(self.0.wrapping_add(count))
            }

            #[must_use]
            pub const fn minus(self, count: u32) -> Self {
                Self(self.0.wrapping_sub(count))
            }

            /// Returns this number and advances `self` to the next one: the number to put into the PDU being sent.
            #[must_use]
            pub const fn take(&mut self) -> Self {
                let taken = *self;
                self.0 = self.0.wrapping_add(1);
                taken
            }

            /// How far this number lies after `other`; negative when before. Exactly 2^31 apart counts as before
            /// (RFC 1982 leaves it undefined).
            #[must_use]
            pub const fn distance_from(self, other: Self) -> i32 {
                self.0.wrapping_sub(other.0).cast_signed()
            }

            #[must_use]
            pub const fn precedes(self, other: Self) -> bool {
                self.distance_from(other) < 0
            }

            #[must_use]
            pub const fn follows(self, other: Self) -> bool {
                self.distance_from(other) > 0
            }

            /// Whether this number lies in the closed window `first..=last`. A window with `last == first - 1`
            /// is empty, as in MaxCmdSN = ExpCmdSN - 1 (RFC 7143 §4.2.2.1).
            #[must_use]
            pub const fn within(self, first: Self, last: Self) -> bool {
                self.distance_from(first) >= 0 && last.distance_from(self) >= 0
            }
        }

        impl From<u32> for $name {
            fn from(value: u32) -> Self {
                Self(value)
            }
        }

        impl From<$name> for u32 {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

serial! {
    /// CmdSN: orders commands across the session.
    CmdSn
}
serial! {
    /// StatSN: counts responses of one connection.
    StatSn
}
serial! {
    /// DataSN and R2TSN: counts data and R2T PDUs of one task (one number space per direction of a task).
    DataSn
}

#[cfg(test)]
mod tests {
    use super::{CmdSn, StatSn};

    #[test]
    fn order_holds_at_the_wrap() {
        // (earlier, later)
        for (a, b) in [
            (0, 1),
            (u32::MAX, 0),
            (u32::MAX - 5, 5),
            (0x7fff_ffff, 0x8000_0000),
            (0x8000_0000, 0x8000_0001),
            (1, 0x8000_0000),
        ] {
            let (a, b) = (CmdSn(a), CmdSn(b));
            assert!(a.precedes(b) && b.follows(a), "{a} {b}");
            assert!(!b.precedes(a) && !a.follows(b), "{a} {b}");
        }
        assert!(!CmdSn(7).precedes(CmdSn(7)) && !CmdSn(7).follows(CmdSn(7)));
    }

    #[test]
    fn window_holds_at_the_wrap() {
        let (first, last) = (CmdSn(u32::MAX - 1), CmdSn(2));
        for (sn, inside) in [
            (u32::MAX - 2, false),
            (u32::MAX - 1, true),
            (u32::MAX, true),
            (0, true),
            (2, true),
            (3, false),
            (0x8000_0000, false),
        ] {
            assert_eq!(CmdSn(sn).within(first, last), inside, "{sn}");
        }
    }

    #[test]
    fn window_closed_admits_nothing() {
        for exp in [0, 1, 0x8000_0000, u32::MAX] {
            let (exp, max) = (CmdSn(exp), CmdSn(exp).minus(1));
            assert!(!exp.within(exp, max));
            assert!(!max.within(exp, max));
            assert!(!exp.next().within(exp, max));
        }
    }

    #[test]
    fn take_steps_over_the_wrap() {
        let mut sn = StatSn(u32::MAX);
        assert_eq!(sn.take(), StatSn(u32::MAX));
        assert_eq!(sn.take(), StatSn(0));
        assert_eq!(sn, StatSn(1));
        assert_eq!(StatSn(2).distance_from(StatSn(u32::MAX)), 3);
        assert_eq!(StatSn(u32::MAX).plus(3).minus(3), StatSn(u32::MAX));
    }
}
