# The cases: model, name, verdicts in the order of the queries (0 holds, 1 an attack was found), concurrent sessions, edits.
# Codes of ik.vp: c confidentiality of data_i, of data_t; a agreement on rec_i, m2, rec_t; e both sides saw the same login.

check ik ik                  c0c0a0a0a0e0 2
# Key compromise impersonation. Who has a key can play its owner, and nobody else to it.
check ik kci-initiator       c0c1a1a0a0e0 1 "$has_is"
check ik kci-target          c1c0a0a1a1e0 1 "$has_ts"
# Forward secrecy: both static keys leak afterwards (P is known to the attacker from the beginning).
check ik forward-secrecy     c0c0a0a0a0e0 1 "$gets_statics"
# Hybrid.
check ik x25519-falls-later  c0c0a0a0a0e0 1 "$x25519_later" "$then_phase"
check ik mlkem-broken        c0c0a0a0a0e0 1 "$mlkem_now"
check ik mlkem-broken-fs     c0c0a0a0a0e0 1 "$mlkem_now" "$gets_statics"
check ik both-fall           c1c1a0a0a0e0 1 "$mlkem_now" "$x25519_later" "$then_phase"
check ik psk-alone           c0c0a0a0a0e0 1 "$mlkem_now" "$x25519_now" "$keeps_psk"
check ik x25519-broken-now   c1c1a1a1a1e1 1 "$x25519_now"
# Message 1 alone: it takes the initiator's or the target's private key, and the nonce makes it of use in one connection only.
check ik first-forged        a0 1 "$first" "$(query 'authentication? Initiator -> Target: m1p')"
check ik first-forged-by-ts  a1 1 "$first" "$has_ts" "$(query 'authentication? Initiator -> Target: m1p')"
check ik first-repeated      a0 2 "$first" "$(query 'authentication? Initiator -> Target: m1p')"
# Unknown key share: the initiator also has sessions with an enemy that it trusts, and the target knows nothing of them.
check ik insider             c0a0a0 1 "$enemy_key" "$any_peer" "$insider_asks" "$two_peers"
# The initiator's key is hidden, until the target's leaks.
check ik identity            c0 1 "$hidden" "$(query 'confidentiality? gis')"
check ik identity-later      c1 1 "$hidden" "$gets_statics" "$(query 'confidentiality? gis')"
# Enrolment shows who answers, which is worth something when the key is compared; and it harms no session.
check xx xx-compared         a0e0 2
check xx xx-anybody          a1e1 1 "$not_compared"
check ik xx-beside           c0c0a0a0a0e0 1 "$beside"
# Fresh keys. Codes of fresh.vp: c of the data of generations 0, 1, and 2 of either direction; a of the second offer and answer, and
# of the first record of generation 2 each way. The state of generation 1 leaks afterwards, or to a thief who alters the exchange.
check fresh fresh            c0c0c0c0a0a0a0a0 1
check fresh fresh-state-later c0c1c0c0a0a0a0a0 1 "$state_later"
check fresh fresh-mlkem-broken c0c1c0c0a0a0a0a0 1 "$state_later" "$mlkem_now"
check fresh fresh-x25519-falls-later c0c1c0c0a0a0a0a0 1 "$state_later" "$fresh_x25519_later"
check fresh fresh-not-hashed c0c1c0c0a0a0a0a0 1 "$state_later" "$no_hash"

# Broken protocols: the checker must see it.
check ik no-nonce            a1 2 "$first" "$no_nonce" "$(query 'authentication? Initiator -> Target: m1p')"
check fresh fresh-active-thief c0c1c1c1a1a1a1a1 1 "$state_now"
check fresh fresh-both-fall  c0c1c1c1a0a0a0a0 1 "$state_later" "$mlkem_now" "$fresh_x25519_later"
check fresh fresh-no-mixing  c0c1c1c1a0a0a0a0 1 "$state_later" "$no_mixing"
check fresh fresh-answer-open c0c1c0c0a0a1a0a0 1 "$state_later" "$answer_open"
check fresh fresh-answer-unbound c0c1c0c0a0a1a0a0 1 "$state_later" "$answer_open" "$no_hash"
check fresh fresh-offer-repeated c0c0c0c0a1a0a0a0 1 "$one_key_for_offers"
check ik no-prologue         c0c0a0a0a0e1 1 "$no_prologue"
check ik no-answer           c0c0a0a0a0e1 1 "$no_answer"
check ik no-es               c1c1a1a1a1e1 1 "$no_es" "$has_is"
check ik no-ss               a1 1 "$first" "$no_ss" "$(query 'authentication? Initiator -> Target: m1p')"
check ik no-ee               c1c1a0a0a0e0 1 "$no_ee" "$mlkem_now" "$gets_statics"
check ik no-se               c1c1a1a1a1e1 1 "$no_se" "$has_ts"
check ik no-mlkem            c1c1a0a0a0e0 1 "$no_mlkem" "$x25519_later" "$then_phase"
check ik no-psk              c1c1a1a1a1e1 1 "$no_psk" "$mlkem_now" "$x25519_now" "$keeps_psk"
check ik one-key             c0c0a0a0a1e0 1 "$one_key"
check xx xx-no-es            a1e1 1 "$xx_no_es"
check xx xx-no-prologue      a0e1 1 "$xx_no_prologue"
