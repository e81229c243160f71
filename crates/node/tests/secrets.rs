//! Types that hold a secret do not implement `==`, whose duration reveals where two values differ.

/// Does not compile if the type implements `PartialEq`: the choice between two implementations is then ambiguous.
macro_rules! is_not_comparable {
    ($($secret:ty),+ $(,)?) => {$({
        trait Ambiguous<Choice> {
            const IS_THERE: bool = true;
        }
        impl<T: ?Sized> Ambiguous<()> for T {}
        struct Comparable;
        impl<T: ?Sized + PartialEq> Ambiguous<Comparable> for T {}
        assert!(<$secret as Ambiguous<_>>::IS_THERE);
    })+};
}

#[test]
fn no_secret_is_compared_byte_by_byte() {
    is_not_comparable!(
        iscsi::chap::Secret,
        node::Psk,
        node::TlsIdentity,
        seal::Channel,
        seal::Identity,
        seal::Initiator,
        seal::Opener,
        seal::Responder,
        seal::Sealer,
    );
}
