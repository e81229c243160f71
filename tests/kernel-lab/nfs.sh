# Guest script: copies that an NFS server makes by itself. The kernel's own server, over loopback, mounted as NFS 4.2 and 4.1. What is copied is
# compared where the server keeps it. Prints lines as check.sh has them.

. /lab/check.sh
export LD_LIBRARY_PATH=/lab HOME=/tmp XDG_STATE_HOME=/tmp/state
for module in crc32c_generic nfsd nfsv4; do modprobe $module; done
hikyaku=/lab/hikyaku
mkdir -p /srv /mnt /old /var/lib/nfs/v4recovery
mount -t tmpfs -o size=400M srv /srv
mount -t nfsd nfsd /proc/fs/nfsd
# Version 3 would want a portmapper. Leases of 10 s are the shortest; so long does the server wait for clients of its last life.
echo -3 > /proc/fs/nfsd/versions
echo 10 > /proc/fs/nfsd/nfsv4leasetime
echo 10 > /proc/fs/nfsd/nfsv4gracetime
# What mountd would answer: who asks, and what /srv is: its flags are fsid= and insecure.
echo "nfsd 127.0.0.1 2147483647 lab" > /proc/net/rpc/auth.unix.ip/channel
echo "lab /srv 2147483647 $((0x2000 + 0x2)) 65534 65534 0" > /proc/net/rpc/nfsd.export/channel
printf 'lab 1 \\x00000000 2147483647 /srv\n' > /proc/net/rpc/nfsd.fh/channel
echo "tcp 2049" > /proc/fs/nfsd/portlist
echo 4 > /proc/fs/nfsd/threads
mounts() { mount -i -t nfs4 -o vers=$1,addr=127.0.0.1,clientaddr=127.0.0.1,sec=sys,nosharecache 127.0.0.1:/ $2; }
check mounted mounts 4.2 /mnt
sent() { # NAME FIELD: of the requests of this kind how many the client has sent (2), bytes of what it sent (5) and of the answers (6)
  awk -v name="$1:" -v field=$2 '/mounted on/ { here = $5 == "/mnt" } here && $1 == name { print $field }' /proc/self/mountstats
}
random() { dd if=/dev/urandom bs=1M count=$1 2> /dev/null; }

# 70 MiB and a bit are two requests. What is read is the destination's ends, for what they may hold.
{ random 70; dd if=/dev/urandom bs=513 count=1 2> /dev/null; } > /mnt/a; sync
copies=$(sent COPY 2) read=$(sent READ 6) written=$(sent WRITE 5)
expect copied 0 '"offload":"copy_file_range"' $hikyaku copy /mnt/a /mnt/b,create,size=73400833 --offload require --json
check copied-same cmp /srv/a /srv/b
copies=$(($(sent COPY 2) - copies)) read=$(($(sent READ 6) - read)) written=$(($(sent WRITE 5) - written))
echo "$copies copies, $read bytes read, $written written" > $said; sed 's/^/  /' $said
check copied-by-two-requests test $copies = 2
check copied-without-data test $((read + written)) -lt 1048576
expect verified 0 '"verified":true' $hikyaku copy /mnt/a /mnt/c,create,size=73400833 --offload require --json --verify

# Over what is there, in part, and with holes.
random 80 > /mnt/d; cp /srv/d /srv/e; sync
expect part 0 '"offload":"copy_file_range"' $hikyaku copy /mnt/a /mnt/d --src-offset 1M --dst-offset 5M --size 20M --force --offload require --json
dd if=/srv/a of=/srv/e bs=1M skip=1 seek=5 count=20 conv=notrunc 2> /dev/null
check part-same cmp /srv/d /srv/e
rm /srv/e /srv/c
truncate -s 64M /mnt/holes; dd if=/dev/urandom of=/mnt/holes bs=1M seek=40 count=3 conv=notrunc 2> /dev/null; sync
expect holes 0 copied $hikyaku copy /mnt/holes /mnt/d --force --offload require
check holes-same cmp -n 67108864 /srv/holes /srv/d

# A protocol that has no such request: Linux copies through the client then, and does not say so.
check mounted-4.1 mounts 4.1 /old
expect old 0 verified $hikyaku copy /old/a /old/f,create,size=73400833 --verify
check old-same cmp /srv/a /srv/f
