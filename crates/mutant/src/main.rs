//! Prints the names of all mutants, a line each.

fn main() {
    for mutant in mutant::Mutant::ALL {
        println!("{mutant:?}");
    }
}
