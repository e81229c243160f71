# Guest script: a file system on a LUN whose connection is cut, whose target is killed, or whose machine (this one)
# loses power, while files are fsynced and SQLite commits. iscsid brings the session back; nothing here retries.
# Variables: PORT, IQN, FS (ext4, xfs), DURATION of work; WITH=postgres for postgres.sh instead; FILES, WAL, ROLLBACK,
# CURRENT, POSTGRES: the last numbers that earlier boots reported, which must be found. The disk holds an empty file system, or one that this script left behind.
#
# The console is the log outside the disk: "FILES 7", "CURRENT 5", "WAL 12", "ROLLBACK 12" are printed when fsync or
# COMMIT has returned. Ends with CHECKED lines after a remount, and UNMOUNTED.

mkdir -p /etc/iscsi /run/lock/iscsi
ln -sf /run /var/run 2>/dev/null || { mkdir -p /var; ln -sf /run /var/run; }
ln -sf /run/lock /var/lock
# iscsid asks who talks to it.
echo 'root:x:0:0::/:/bin/sh' > /etc/passwd
echo InitiatorName=iqn.2026-11.org.example:guest > /etc/iscsi/initiatorname.iscsi
# A lost session is kept and its commands queued for longer than any outage here; silence is noticed within 4 s.
cat > /etc/iscsi/iscsid.conf <<CONF
node.startup = manual
node.session.timeo.replacement_timeout = 600
node.session.iscsi.DefaultTime2Wait = 0
node.session.err_timeo.abort_timeout = 5
node.session.err_timeo.lu_reset_timeout = 5
node.conn[0].timeo.login_timeout = 5
node.conn[0].timeo.logout_timeout = 5
node.conn[0].timeo.noop_out_interval = 2
node.conn[0].timeo.noop_out_timeout = 2
CONF

fail() { echo "FAILED $*"; tail -5 /tmp/iscsid; dmesg | tail -15; exit 9; }
now() { read -r up _ < /proc/uptime; up=${up%.*}; }

log_in() {
  iscsid -f > /tmp/iscsid 2>&1 &
  sleep 0.5
  iscsiadm -m node -o new -T "$IQN" -p "10.0.2.2:$PORT,1" > /tmp/node || return 1
  # The first login is not repeated by itself, and the machine may be slow.
  tries=0
  until iscsiadm -m node -T "$IQN" -p "10.0.2.2:$PORT" --login > /tmp/node 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 4 ] || return 1
  done
  tries=0
  until [ -b /dev/sda ]; do sleep 0.2; tries=$((tries + 1)); [ $tries -lt 100 ] || return 1; done
}

# The file's content follows from its number, so that the checker needs nothing but the number.
content() { yes "$1 of them" | head -c $(($1 * 7919 % 40000 + 20)); }

# Until the time is over, and then until enough was done: faults may take all of the time.
goes_on() { # DONE
  now
  [ "$up" -lt "$end" ] || [ "$1" -lt 4 ]
}

files() {
  n=$FILES
  while goes_on $((n - FILES)); do
    n=$((n + 1))
    content $n > /mnt/file.$n && sync /mnt/file.$n /mnt || fail "files $n"
    echo "FILES $n"
    echo $n > /tmp/last
    [ $((n % 2)) = 0 ] || continue
    content $n > /mnt/current.new && sync /mnt/current.new && mv /mnt/current.new /mnt/current && sync /mnt \
      || fail "rename $n"
    echo "CURRENT $n"
  done
}

# What is written to 3 a program reads, what it says is read from 4.
converse() { # NAME PROGRAM...
  name=$1
  shift
  trap '' PIPE
  mkfifo /tmp/$name.in /tmp/$name.out
  "$@" < /tmp/$name.in > /tmp/$name.out &
  exec 3> /tmp/$name.in 4< /tmp/$name.out
}

# Before its commit returns, the rollback journal's removal must be durable too: EXTRA; with a WAL that is FULL.
# One table that grows, two accounts between which money moves: a torn transaction changes their sum.
sqlite() { # TAG journal-mode last
  converse $2 sqlite3 -bail /mnt/$2.db
  {
    echo "PRAGMA busy_timeout=60000; PRAGMA journal_mode=$2; PRAGMA synchronous=EXTRA;"
    echo "CREATE TABLE IF NOT EXISTS entry(n INTEGER PRIMARY KEY, v TEXT);"
    echo "CREATE TABLE IF NOT EXISTS account(id INTEGER PRIMARY KEY, amount INT);"
    echo "INSERT OR IGNORE INTO account VALUES(1, 0), (2, 0);"
  } >&3
  n=$3
  while goes_on $((n - $3)); do
    n=$((n + 1))
    {
      echo "BEGIN IMMEDIATE; INSERT INTO entry VALUES($n, $n || printf('%.*c', $((n * 37 % 3000 + 1)), 'x'));"
      echo "UPDATE account SET amount = amount - $n WHERE id = 1; UPDATE account SET amount = amount + $n WHERE id = 2;"
      echo "COMMIT; SELECT '$1 $n';"
    } >&3
    # One transaction at a time, so that nothing is left to do when the time is over.
    until [ "$answer" = "$1 $n" ]; do read -r answer <&4 || fail "$1"; done
    echo "$answer"
    sleep 0.1
  done
  exec 3>&-
  wait $! || fail "$1 close"
}

check_sqlite() { # TAG journal-mode last
  found=$(sqlite3 -bail /mnt/$2.db "PRAGMA integrity_check;
    SELECT count(*) >= $3 AND max(n) = count(*)
      AND sum(v = n || printf('%.*c', n * 37 % 3000 + 1, 'x')) = count(*) FROM entry;
    SELECT (SELECT sum(amount) FROM account) = 0
      AND (SELECT amount FROM account WHERE id = 2) = (SELECT sum(n) FROM entry);" | tr '\n' ' ')
  [ "$found" = "ok 1 1 " ] || fail "check $1 $3: $found"
  echo "CHECKED $1 $3"
}

check() { # that everything reported is there
  n=0
  while [ $n -lt "$FILES" ]; do
    n=$((n + 1))
    content $n | cmp - /mnt/file.$n || fail "check file $n of $FILES"
  done
  echo "CHECKED FILES $FILES"
  if [ "$CURRENT" -gt 0 ]; then
    read -r n _ < /mnt/current
    [ "$n" -ge "$CURRENT" ] && content "$n" | cmp - /mnt/current || fail "check current: $n, reported $CURRENT"
  fi
  echo "CHECKED CURRENT $CURRENT"
  [ "$WAL" = 0 ] || check_sqlite WAL wal $WAL
  [ "$ROLLBACK" = 0 ] || check_sqlite ROLLBACK delete $ROLLBACK
}

start() { :; }
stop() { :; }
crash() { :; }

# A transaction may have been committed without anybody having heard of it.
more() {
  found=""
  [ ! -s /mnt/$1.db ] || found=$(sqlite3 /mnt/$1.db "SELECT max(n) FROM entry" 2>/dev/null)
  echo ${found:-0}
}

count() {
  [ ! -s /tmp/last ] || FILES=$(cat /tmp/last) CURRENT=$((FILES / 2 * 2))
  WAL=$(more wal) ROLLBACK=$(more delete)
}

work() {
  files & writers=$!
  sqlite WAL wal $WAL & writers="$writers $!"
  sqlite ROLLBACK delete $ROLLBACK & writers="$writers $!"
}

# For whoever reads the console of a guest that was late.
state() {
  while sleep 20; do
    now
    echo "STATE at $up s: session $(tr A-Z a-z < /sys/class/iscsi_session/session1/state), connection $(cat /sys/class/iscsi_connection/*/state)," \
      "in flight $(cat /sys/block/sda/inflight); $(tail -1 /tmp/iscsid)"
  done
}

for module in crc32c_generic iscsi_tcp sd_mod $FS; do modprobe $module 2>/dev/null; done
[ -z "$WITH" ] || . /lab/$WITH.sh
log_in || fail "log in: $(cat /tmp/node)"
# The kernel gives a command up that was cut six times, which is its right; here that is no accident.
echo -1 > /sys/class/scsi_disk/0:0:0:0/max_retries || fail "no unlimited retries"
state 2> /dev/null &
mount -t $FS /dev/sda /mnt || fail mount
start
check
count
echo WORKING
now
end=$((up + DURATION))
work
# Data that nobody syncs, so that commits are not alone on the wire; little of it, they wait for it.
while now; [ "$up" -lt "$end" ]; do head -c $((up * 7919 % 300000)) /bin/busybox > /mnt/noise; sleep 0.3; done
wait $writers
echo WORK-DONE
count
crash
umount /mnt || fail umount
echo 3 > /proc/sys/vm/drop_caches
mount -t $FS /dev/sda /mnt || fail mount again
start
check
stop
umount /mnt || fail umount again
# Commands that came back because the connection was lost, or with the target's word of that: the kernel sent them again.
echo "REPEATED $(($(cat /sys/class/scsi_device/0:0:0:0/device/ioerr_cnt)))"
echo UNMOUNTED
iscsiadm -m session -u > /tmp/node 2>&1 || echo "NO-LOGOUT $(cat /tmp/node)"
