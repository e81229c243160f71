# Sourced by survive.sh when WITH=postgres: PostgreSQL on the file system, in place of files and SQLite. "POSTGRES 7" is
# printed when COMMIT has returned. Before the remount the server is stopped as a crash would, so that the check begins
# with its recovery; at the end every table, index and page checksum is examined.

echo 'postgres:x:100:100::/tmp:/bin/sh' >> /etc/passwd
echo 'postgres:x:100:' >> /etc/group
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
chmod 1777 /dev/shm /tmp

as_postgres() { su postgres -c "$*"; }
ask() { psql -qAtX -v ON_ERROR_STOP=1 -h /tmp -U postgres postgres "$@"; }

start() {
  if [ ! -d /mnt/pg ]; then
    # A crash may have met it half made.
    rm -rf /mnt/pg.new && mkdir /mnt/pg.new && chown 100:100 /mnt/pg.new || fail "make a directory"
    as_postgres initdb -k -A trust --no-locale -E UTF8 --wal-segsize=1 -D /mnt/pg.new > /tmp/initdb 2>&1 \
      || fail "initdb: $(tail -5 /tmp/initdb)"
    mv /mnt/pg.new /mnt/pg && sync /mnt || fail "keep the cluster"
  fi
  # Left by another boot, whose process ids mean nothing here.
  rm -f /mnt/pg/postmaster.pid
  as_postgres "exec postgres -D /mnt/pg -h '' -k /tmp -c shared_buffers=16MB -c max_connections=10 -c checkpoint_timeout=30s" \
    > /tmp/pg.log 2>&1 &
  server=$!
  until ask -c 'SELECT 1' > /dev/null 2>&1; do
    kill -0 $server || fail "the server has ended: $(tail -5 /tmp/pg.log)"
    sleep 0.5
  done
  ask <<SQL || fail "make the tables"
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS amcheck;
CREATE TABLE IF NOT EXISTS entry(n bigint PRIMARY KEY, v text);
CREATE TABLE IF NOT EXISTS account(id int PRIMARY KEY, amount bigint);
INSERT INTO account VALUES (1, 0), (2, 0) ON CONFLICT DO NOTHING;
SQL
}

stop() { # cleanly, and then not a page may be wrong
  pg_amcheck --heapallindexed -h /tmp -U postgres postgres || fail "amcheck"
  as_postgres "pg_ctl stop -s -t 600 -m fast -D /mnt/pg" && wait $server || fail "stop: $(tail -5 /tmp/pg.log)"
  as_postgres "pg_checksums --check -D /mnt/pg" > /tmp/checksums 2>&1 || fail "checksums: $(tail -5 /tmp/checksums)"
}

crash() {
  as_postgres "pg_ctl stop -s -t 600 -m immediate -D /mnt/pg"
  wait $server
}

count() { POSTGRES=$(ask -c 'SELECT coalesce(max(n), 0) FROM entry') || fail "count"; }

transactions() {
  converse postgres ask
  n=$POSTGRES
  while goes_on $((n - POSTGRES)); do
    n=$((n + 1))
    {
      echo "BEGIN; INSERT INTO entry VALUES ($n, $n || repeat('x', $((n * 37 % 3000 + 1))));"
      echo "UPDATE account SET amount = amount - $n WHERE id = 1; UPDATE account SET amount = amount + $n WHERE id = 2;"
      echo "COMMIT; SELECT 'POSTGRES $n';"
    } >&3
    read -r answer <&4 && [ "$answer" = "POSTGRES $n" ] || fail "POSTGRES $n: $answer; $(tail -5 /tmp/pg.log)"
    echo "$answer"
    sleep 0.1
  done
}

work() { transactions & writers=$!; }

check() {
  found=$(ask -c "SELECT count(*) >= $POSTGRES AND coalesce(max(n), 0) = count(*)
      AND count(*) = count(*) FILTER (WHERE v = n || repeat('x', (n * 37 % 3000 + 1)::int)) FROM entry" \
    -c "SELECT (SELECT sum(amount) FROM account) = 0
      AND (SELECT amount FROM account WHERE id = 2) = (SELECT coalesce(sum(n), 0) FROM entry)" | tr '\n' ' ')
  [ "$found" = "t t " ] || fail "check POSTGRES $POSTGRES: $found"
  echo "CHECKED POSTGRES $POSTGRES"
}
