# Guest script, on Debian with systemd: four sessions of the kernel's initiator write and flush while the service is
# restarted and its package upgraded. Prints lines as check.sh has them, and "LONGEST n": the longest write with its flush,
# milliseconds, of all sessions. In /lab: hikyaku.deb and later.deb.

. /lab/check.sh
iqn=iqn.2026-11.org.example:disk
disks="0 1 2 3"
for module in iscsi_tcp sd_mod; do modprobe $module; done
dpkg -i /lab/hikyaku.deb > /tmp/log 2>&1 || cat /tmp/log
install -d -o hikyaku /srv/hikyaku
for disk in $disks; do
  truncate -s 16M /srv/hikyaku/$disk.img; chown hikyaku /srv/hikyaku/$disk.img
  printf '[[target]]\niqn = "%s%s"\n[[target.lun]]\nlun = 0\nendpoint = "/srv/hikyaku/%s.img"\n' $iqn $disk $disk
done > /etc/hikyaku/hikyaku.toml
systemctl start hikyaku.service

# Writes stamped blocks until the file /tmp/stop exists, each flushed, then reads all of them from the target.
cat > /tmp/writer <<'PERL'
use strict; use Fcntl; use IO::Handle;
sub now { open my $up, '<', '/proc/uptime' or die; (split ' ', <$up>)[0] }
my ($disk, $number) = @ARGV; my ($count, $longest, $at, %last) = (0, 0, 0);
sysopen my $file, $disk, O_RDWR or die "open $disk: $!\n";
srand 7 + $number;
sub content { (pack 'Q>Q>Q>Q>', $number, @_, 0x68696b79) x 128 }
until (-e '/tmp/stop') {
  my ($block, $since) = (int rand 1024, now);
  sysseek $file, $block * 4096, 0 or die "seek: $!\n";
  (syswrite $file, content($block, ++$count)) == 4096 or die "write $count of $disk: $!\n";
  $file->sync or die "flush $count of $disk: $!\n";
  my $took = now() - $since;
  ($longest, $at) = ($took, $count) if $took > $longest;
  $last{$block} = $count;
}
open my $caches, '>', '/proc/sys/vm/drop_caches'; print $caches "3\n"; close $caches;
while (my ($block, $count) = each %last) {
  sysseek $file, $block * 4096, 0; my $got = '';
  (sysread $file, $got, 4096) == 4096 or die "read block $block of $disk: $!\n";
  $got eq content($block, $count) or die "block $block of $disk is not that of write $count\n";
}
printf "%d writes, the longest %d ms, number %d\n", $count, 1000 * $longest, $at;
PERL

check iscsid-started systemctl start iscsid.service
for disk in $disks; do
  iscsiadm -m node -o new -T $iqn$disk -p 127.0.0.1:3260,1 > /tmp/node
  check logged-in-$disk iscsiadm -m node -T $iqn$disk -p 127.0.0.1:3260 --login
done
path() { # DISK: its device
  for session in /sys/class/iscsi_session/session*; do
    [ "$(cat $session/targetname)" = $iqn$1 ] || continue
    for found in $session/device/target*/*:0/block/sd*; do [ -d $found ] && echo /dev/${found##*/}; done
  done
}
appeared() { for disk in $disks; do [ -b "$(path $disk)" ] || return 1; done; }
check disks-appeared wait_for appeared
for disk in $disks; do perl /tmp/writer "$(path $disk)" $disk > /tmp/writer.$disk 2>&1 & eval pid_$disk=$!; done
sleep 3
check restarted systemctl restart hikyaku.service
sleep 6
check unpacked dpkg --unpack /lab/later.deb
old=$(systemctl show hikyaku.service --value -p MainPID)
check upgraded dpkg --configure hikyaku
check upgrade-is-another-process test "$(systemctl show hikyaku.service --value -p MainPID)" != $old
sleep 6
touch /tmp/stop
for disk in $disks; do
  eval pid=\$pid_$disk
  wait $pid; code=$?
  cp /tmp/writer.$disk $said
  if [ $code = 0 ]; then pass no-command-failed-$disk; else fail no-command-failed-$disk; fi
  cat /tmp/writer.$disk
done
check sessions-came-back sh -c "iscsiadm -m session -P 1 | grep -c 'Session State: LOGGED_IN' | grep -qx 4"
logged() { ! dmesg | grep -i 'i/o error'; }
check kernel-logs-no-error logged
echo "LONGEST $(sed -n 's/.*the longest \([0-9]*\) ms.*/\1/p' /tmp/writer.? | sort -n | tail -1)"
iscsiadm -m node --logout > /tmp/node 2>&1
