#!/usr/bin/env bash
# Checks the model of SEAL/1: every case must come out as written here, those that must fail too.
#   check.sh [CASE...]
# Takes Verifpal from $VERIFPAL, or builds it from crates.io into $SEAL_MODEL_TOOLS (default: below the user's cache).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=1.6.7
tools=${SEAL_MODEL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/hikyaku/verifpal-$version}
wanted=" $* "

verifpal=${VERIFPAL:-$tools/bin/verifpal}
# It asks for a newer compiler than it needs: Rust 1.95 builds it.
[ -x "$verifpal" ] || (cd / && cargo install -q verifpal --version "=$version" --locked --ignore-rust-version --root "$tools") >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
ran=0

# check MODEL NAME CODE SESSIONS EDIT...: MODEL.vp, edited by sed scripts, must give CODE.
check() {
	local source=$1 name=$2 expect=$3 at=$4 edit model code begin=$SECONDS
	shift 4
	[ "$wanted" = "  " ] || [[ "$wanted" == *" $name "* ]] || return 0
	ran=$((ran + 1))
	model=$work/$name.vp
	cp "$here/$source.vp" "$model"
	for edit in "$@"; do
		cp "$model" "$model.old"
		sed -i -E "$edit" "$model"
		! cmp -s "$model" "$model.old" || { echo "FAIL $name: nothing to edit by: $edit"; bad=1; return 0; }
	done
	code=$("$verifpal" verify "$model" --sessions "$at" --result-code --color never 2>&1 | tee "$work/$name.log" | tail -1) || true
	if [ "$code" != "$expect" ]; then
		echo "FAIL $name: $code, not $expect"
		cat "$work/$name.log"
		bad=1
	elif grep -q truncated "$work/$name.log"; then
		echo "FAIL $name: the search was cut short"
		bad=1
	else
		echo "ok   $name $code ($((SECONDS - begin)) s)"
	fi
}

# query TEXT: an edit that asks one thing only.
query() { echo "/^queries\[/,\$c\\queries[\n\t$1\n]"; }
# later TEXT: an edit that adds a later phase.
later() { echo "s|^//@later|phase[1]\n\n$1|"; }

# Edits. What the attacker has beforehand, or comes by later:
has_is='s|//@initiator|leaks is|'
has_ts='s|//@target|leaks ts|'
gets_statics=$(later 'principal Initiator[leaks is]\nprincipal Target[leaks ts]')
x25519_later='s/= PUBKEY\((is|ts|ie|te)\)/= PUBKEY[weak from phase 1](\1)/'
x25519_now='s/= PUBKEY\((is|ts|ie|te)\)/= PUBKEY[weak](\1)/'
mlkem_now='s/= KEM_ENCAP\(/= KEM_ENCAP[weak](/'
then_phase=$(later '')
keeps_psk='/leaks psk/d'
# The login ends after message 1.
first='/^\/\/ Response 2/,/^\/\/@later/{/^\/\/@later/!d}'
# What the protocol could have left out:
no_prologue='s/HASH\(ik, p1, q2, /HASH(ik, /'
no_answer='s/HASH\(ik, p1, q2, /HASH(ik, p1, /'
no_nonce='s/q2 = CONCAT\(p2, n\)/q2 = HASH(p2)/'
no_es='s/DH_KEX[^)]*\), nil\) \/\/ es/nil, nil)/'
no_ss='s/DH_KEX[^)]*\), nil\) \/\/ ss/nil, nil)/'
no_ee='s/DH_KEX[^)]*\), nil\) \/\/ ee/nil, nil)/'
no_se='s/DH_KEX[^)]*\), nil\) \/\/ se/nil, nil)/'
no_mlkem='s/CONCAT\(ss_[it], psk\)/psk/'
no_psk='s/CONCAT\((ss_[it]), psk\)/\1/'
one_key='s/key_t([it])\b/key_i\1/2; s/ENC\(key_tt/ENC(key_it/; s/DEC\(key_ti/DEC(key_ii/'
not_compared='/user compares/d'
xx_no_es='s/DH_KEX[^)]*\), nil\) \/\/ es/nil, nil)/'
xx_no_prologue='s/HASH\(xx, x1, x2, /HASH(xx, /'
# In a session's exchanges of fresh keys:
state_later=$(later 'principal Initiator[leaks si1, st1]')
state_now='s|//@thief|leaks si1, st1|'
fresh_x25519_later='s/= PUBKEY\(([xz][12])\)/= PUBKEY[weak from phase 1](\1)/'
no_mixing='s/= CONCAT\(DH_KEX[^)]*\), ss2[it], (bound2[it])\)/= HASH(\1)/'
answer_open='/^\tanswer2 = /d; /^\ta2i = /d; s/\ba2i\b/a2/g; s/Initiator: answer2/Initiator: a2/'
no_hash='s/HASH\(o2t?, a2i?\)/HASH(n1)/'
one_key_for_offers='s/AEAD_ENC\(si1, n3, o2,/AEAD_ENC(si0, n2, o2,/; s/AEAD_DEC\(si1t, n3, offer2/AEAD_DEC(si0, n2, offer2/'

hidden='/\[gis\]$/d; /ASSERT\(seen, gis\)/d'

# The initiator talks to the target or to an enemy whose key it trusts as well.
enemy_key='/^Target -> Initiator: \[gts\]/a\\nprincipal Mallory[\n\tknows private ms\n\tleaks ms\n\tgms = PUBKEY(ms)\n]\n\nMallory -> Initiator: [gms]'
any_peer='0,/knows public ik, zero/s//knows public ik, zero, peer/; s/DH_KEX\(gts, /DH_KEX(peer, /; /h0i =/s/gts/peer/'
two_peers='/^queries\[/i scenarios[\n\tInitiator[peer = gts]\n\tInitiator[peer = gms]\n]\n'
insider_asks=$(query 'confidentiality? data_i\n\tauthentication? Initiator -> Target: rec_i\n\tauthentication? Target -> Initiator: m2')

# Enrolment in the same run as a session: the principals of xx.vp before the queries of ik.vp.
sed -e '/^attacker/d' -e '/^queries/,$d' "$here/xx.vp" >"$work/beside"
beside="/^queries\[/e cat $work/beside"

source "$here/cases.sh"

for search in policy steps; do
	[ "$wanted" = "  " ] || [[ "$wanted" == *" $search "* ]] || continue
	ran=$((ran + 1))
	if python3 "$here/$search.py"; then echo "ok   $search"; else bad=1; fi
done
[ $ran -gt 0 ] || { echo "no case of that name: $*" >&2; exit 2; }
exit $bad
