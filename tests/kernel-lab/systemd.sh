# Guest script, on Debian with systemd: the package is installed and its service driven as an administrator would, by
# systemctl and journalctl. Prints lines as check.sh has them. In /lab: hikyaku.deb, and later.deb, the same with a higher
# version. Variable: FULL, for the upgrade and the watchdog too.

. /lab/check.sh
export HOME=/root XDG_STATE_HOME=/tmp/state XDG_CONFIG_HOME=/tmp/config
conf=/etc/hikyaku/hikyaku.toml
portal=127.0.0.1:3260
url=iscsi://$portal/iqn.2026-11.org.example:open/0
stored=iqn.2026-11.org.example:stored
sealed=iscsi://$portal/iqn.2026-11.org.example:sealed/0

show() { systemctl show hikyaku.service --value -p "$1"; }
main() { show MainPID; }
is() { # WANTED COMMAND...: its output
  wanted=$1; shift
  got=$("$@" 2>&1)
  [ "$got" = "$wanted" ] || { echo "$* gave '$got', expected '$wanted'"; return 1; }
}
log() { journalctl -q -b -u hikyaku.service -o cat "$@"; }
logs() { # WORDS: within some seconds, behind the mark
  for _ in $(seq 60); do
    if log --after-cursor="$mark" | grep -q -- "$1"; then return 0; fi
    sleep 0.2
  done
  echo "no '$1' in the log:"; log --after-cursor="$mark" | tail -8; return 1
}
# The mark is an entry of this log: behind one that its filter leaves out, journalctl 252 skips the first that it has.
mark() { mark=$(log -n 1 --show-cursor | sed -n 's/^-- cursor: //p'); }
# The inode of the listening socket at port 3260: another socket has another one.
socket() { awk '$4 == "0A" && $2 ~ /:0CBC$/ { print $10 }' /proc/net/tcp; }
as() { # USER COMMAND...
  user=$1; shift
  setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups \
    env HOME=/tmp/$user XDG_STATE_HOME=/tmp/$user XDG_CONFIG_HOME=/tmp/$user "$@"
}
configure() { # a target for users of this machine, and one with CHAP
  cat > $conf <<CONF
[server]
drain-timeout = "5s"
[[target]]
iqn = "iqn.2026-11.org.example:open"
[[target.lun]]
lun = 0
endpoint = "/srv/hikyaku/a.img"
[[target]]
iqn = "$stored"
[[target.lun]]
lun = 0
endpoint = "mem:1M"
[[target.acl]]
chap-user = "u"
secret-file = "/run/credentials/hikyaku.service/u"
CONF
}
configure_sealed() { # PEERS
  cat > $conf <<CONF
[server]
identity = "secrets/server"
peers = "peers.toml"
[[target]]
iqn = "iqn.2026-11.org.example:sealed"
[[target.lun]]
lun = 0
endpoint = "mem:4M"
CONF
  for name in $1; do
    printf '[[peer]]\nname = "%s"\npublic-key = "%s"\n' $name "$(cat /tmp/$name.public)"
  done > /etc/hikyaku/peers.toml
}
sealed_info() { hikyaku info "$sealed,identity=/tmp/$1,peer-key=$server"; }
rules() { # PREFIX: what must hold whatever has happened to the service
  pid=$(main)
  check $1-active is active systemctl is-active hikyaku.service
  expect $1-root 0 "" hikyaku info $url
  [ $1 = socket ] || expect $1-own-user 0 "" as hikyaku hikyaku info $url
  expect $1-other-user 4 allow-user as nobody hikyaku info $url
  check $1-confined grep -qx 'Seccomp:	2' /proc/$pid/status
  check $1-without-rights is "0000000000000000 0000000000000000 1" \
    awk '/^CapEff|^CapBnd|^NoNewPrivs/ { printf "%s%s", n++ ? " " : "", $2 }' /proc/$pid/status
}

check installed dpkg -i /lab/hikyaku.deb
check enabled is enabled systemctl is-enabled hikyaku.service
check socket-disabled is disabled systemctl is-enabled hikyaku.socket
check nothing-served is inactive systemctl is-active hikyaku.service

install -d -o hikyaku /srv/hikyaku
truncate -s 16M /srv/hikyaku/a.img; chown hikyaku /srv/hikyaku/a.img
for name in laptop backup; do hikyaku key new /tmp/$name > /tmp/$name.public; done
server=$(hikyaku key new /etc/hikyaku/secrets/server)
chown hikyaku /etc/hikyaku/secrets/server
mkdir /root/hikyaku
echo secret-of-16-byt > /root/hikyaku/u; chmod 600 /root/hikyaku/u
mkdir -p /etc/systemd/system/hikyaku.service.d
printf '[Service]\nLoadCredential=u:/root/hikyaku/u\nWatchdogSec=4s\n' > /etc/systemd/system/hikyaku.service.d/lab.conf
configure
systemctl daemon-reload
check started systemctl start hikyaku.service
check notified is notify show Type
check says-what-it-serves sh -c "systemctl show hikyaku.service -p StatusText | grep -q 3260"
# Landlock is whole since Linux 6.12.
check confined-as-far-as-the-kernel-can sh -c \
  "! journalctl -b -u hikyaku.service -o cat | grep 'confined only in part' | grep -v 'in part: Landlock: [^;]*$'"
rules start

# A credential that only root can read in the file system.
printf 'secret-of-16-byt' > /tmp/u; chmod 600 /tmp/u
expect credential 0 "" hikyaku info "iscsi://$portal/$stored/0,chap-user=u,chap-secret-file=/tmp/u"
printf 'another-of-16-by' > /tmp/u
expect credential-wrong 4 "" hikyaku info "iscsi://$portal/$stored/0,chap-user=u,chap-secret-file=/tmp/u"
journalctl -q -b -u hikyaku.service -o json > /tmp/json
for field in PEER INITIATOR TARGET CHAP_USER SYSLOG_IDENTIFIER; do
  check journal-field-$field grep -q "\"$field\":" /tmp/json
done
check journal-priority sh -c "journalctl -q -b -u hikyaku.service -o json -p warning | grep -q '\"PEER\"'"

mark
sed -i 's/^drain-timeout.*/drain-timeout = "3s"/' $conf
check reloaded systemctl reload hikyaku.service
check reload-logged logs 'SIGHUP: '
expect reload-other-user 4 allow-user as nobody hikyaku info $url
mark
sed -i '1a not-a-key = 1' $conf
systemctl reload hikyaku.service
check bad-reload-names-the-line logs 'line 2.*nothing is changed\|nothing is changed.*line 2'
check bad-reload-active is active systemctl is-active hikyaku.service
sed -i 2d $conf

# Restart under an open session: the socket and the session's data stay.
before=$(socket) old=$(main)
mark
hikyaku bench path $url --write --destroy --verify --depth 4 --block-size 4K --range 1M --seconds 8 > /tmp/bench 2>&1 &
bench=$!
check busy logs 'logged in'
check restarted systemctl restart hikyaku.service
check restart-is-another-process test "$(main)" != "$old"
check restart-keeps-the-socket is "$before" socket
check stored is 1 show NFileDescriptorStore
wait $bench; code=$?
cp /tmp/bench $said; if [ $code = 0 ]; then pass no-command-failed; else fail no-command-failed; fi
rules restart

if [ -n "$FULL" ]; then
# An upgrade is a restart too.
check unpacked dpkg --unpack /lab/later.deb
before=$(socket) old=$(main)
mark
hikyaku bench path $url --write --destroy --verify --depth 4 --block-size 4K --range 1M --seconds 20 > /tmp/bench 2>&1 &
bench=$!
check upgrade-busy logs 'logged in'
check upgraded dpkg --configure hikyaku
check upgrade-is-under-load kill -0 $bench
check upgrade-is-another-process test "$(main)" != "$old"
check upgrade-keeps-the-socket is "$before" socket
wait $bench; code=$?
cp /tmp/bench $said; if [ $code = 0 ]; then pass upgrade-fails-no-command; else fail upgrade-fails-no-command; fi

fed=$(show WatchdogTimestampMonotonic)
check watchdog-fed wait_for sh -c "[ \$(systemctl show hikyaku.service --value -p WatchdogTimestampMonotonic) != $fed ]"
kill -STOP $(main)
check watchdog-ends-a-stuck-server wait_for sh -c "[ \$(systemctl show hikyaku.service --value -p NRestarts) = 1 ]"
check watchdog-restarts-it wait_for systemctl is-active hikyaku.service
fi

check stopped systemctl stop hikyaku.service
check stop-is-clean is success show Result
check stop-closes-the-port is "" socket

# Started by the first connection to the socket unit: on loopback as above, then on the addresses of the package, for
# which every way in needs a key.
mkdir -p /etc/systemd/system/hikyaku.socket.d
printf '[Socket]\nListenStream=\nListenStream=127.0.0.1:3260\n' > /etc/systemd/system/hikyaku.socket.d/lab.conf
systemctl daemon-reload
check socket-started systemctl start hikyaku.socket
check socket-waits is inactive systemctl is-active hikyaku.service
before=$(socket)
expect socket-activates 0 "" hikyaku info $url
check socket-restarts systemctl restart hikyaku.service
check socket-stays is "$before" socket
rules socket
systemctl stop hikyaku.socket hikyaku.service
rm /etc/systemd/system/hikyaku.socket.d/lab.conf
configure_sealed 'laptop backup'
systemctl daemon-reload
systemctl start hikyaku.socket
expect socket-sealed 0 "" sealed_info laptop

# A peer that is removed loses its session, and stays away after a restart.
mark
hikyaku bench path "$sealed,identity=/tmp/laptop,peer-key=$server,timeout=2s" --depth 1 --block-size 4K --seconds 60 > /tmp/bench 2>&1 &
bench=$!
check sealed-session logs 'logged in'
configure_sealed backup
mark
systemctl reload hikyaku.service
check revoked logs '1 session ended'
ended() { ! kill -0 $bench; }
check revoked-session-ends wait_for ended
expect revoked-stays-out 4 "" sealed_info laptop
check revoked-restarted systemctl restart hikyaku.service
expect restart-revoked-stays-out 4 "" sealed_info laptop
expect others-stay 0 "" sealed_info backup
