mod build;
mod framer;
mod reader;
mod slim;
mod speed;
mod tshark;
mod verdict;
mod written;
