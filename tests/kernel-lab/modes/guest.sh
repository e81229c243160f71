# In the guest: each work by itself in both modes, then the remainders in both at once on its one processor.
cd /lab
kernel() { insmod load.ko work=$1 count=$2 && rmmod load; }
for count in 15 20 25; do ./user fibonacci $count; kernel fibonacci $count; done
for count in 250000 500000 1000000; do ./user remainders $count; kernel remainders $count; done
echo MODES together
./user remainders $TOGETHER &
# It has begun.
sleep 0.02
kernel remainders $TOGETHER
wait
